"""What a measurement looks like as text: table and marked answers."""

from __future__ import annotations

from typing import Any


def summary_table(values: dict[str, float], how: str) -> str:
    """Plain-text table of the validation and decoding values.

    Args:
        values: Logged values by name.
        how: One line that says how they were made.
    """
    get = lambda name: values.get(name, float("nan"))  # noqa: E731
    ks = sorted(int(name.rsplit("/", 1)[1]) for name in values if name.startswith("decode/accept_at/"))
    lines = [
        f"{'teacher-forced MAT (val/mat)':<34}{get('val/mat'):8.3f}",
        f"{'decoded MAT (decode/mat)':<34}{get('decode/mat'):8.3f}   the bonus token counted",
    ]
    lines += [
        f"  {name.rsplit('/', 1)[1]:<32}{value:8.3f}"
        for name, value in sorted(values.items())
        if name.startswith("decode/mat_family/")
    ]
    lines += [
        f"{'AR tokens/s':<34}{get('decode/ar_tokens_per_second'):8.1f}",
        f"{'speculative tokens/s':<34}{get('decode/tokens_per_second'):8.1f}",
        f"{'speed-up':<34}{get('decode/speedup'):8.2f}x",
    ]
    parts = [f"{part} {get(f'decode/round_ms/{part}'):.1f}" for part in ("draft", "correct", "verify", "host")]
    lines.append(f"{'round latency, ms':<34}  {', '.join(parts)}")
    if "decode/lossless" in values:
        equal = get("decode/lossless") * get("decode/num_prompts")
        lines.append(f"{'outputs equal to AR':<34}  {equal:.0f} of {get('decode/num_prompts'):.0f}")
    if ks:
        lines.append(f"{'position':<12}" + "".join(f"{k:>7}" for k in ks))
        lines.append(f"{'acceptance':<12}" + "".join(f"{values[f'decode/accept_at/{k}']:7.3f}" for k in ks))
        lines.append(f"{'survival':<12}" + "".join(f"{values[f'decode/survival_at/{k}']:7.3f}" for k in ks))
    width = max(map(len, lines))
    return "\n".join(["-" * width, *lines, f"({how}; {get('decode/num_prompts'):.0f} prompts)", "-" * width])


def token_groups(tokens: list[int], accepted: list[int]) -> list[tuple[list[int], list[int]]]:
    """Split an output into rounds: accepted drafts, and the target's own token that closes the round.

    Args:
        tokens: Emitted tokens; the first comes from the prefill.
        accepted: Accepted drafts per round.
    """
    groups: list[tuple[list[int], list[int]]] = [([], list(tokens[:1]))]
    start = 1
    for count in accepted:
        groups.append((list(tokens[start : start + count]), list(tokens[start + count : start + count + 1])))
        start += count + 1
    return groups


def marked_sample(tokenizer: Any, tokens: list[int], accepted: list[int]) -> str:
    """Markdown of one output: accepted drafts bold, the target's own tokens plain, rounds divided by a bar."""
    rounds = []
    for drafts, own in token_groups(tokens, accepted):
        bold = "".join(f"**{_plain(tokenizer, [token])}**" for token in drafts)
        rounds.append(bold + _plain(tokenizer, own))
    return " | ".join(rounds)


def _plain(tokenizer: Any, ids: list[int]) -> str:
    text = tokenizer.decode(ids, skip_special_tokens=False)
    return text.replace("\n", "⏎").replace("*", "\\*").replace("|", "\\|").replace("<", "&lt;").replace(" ", "\u00a0")
