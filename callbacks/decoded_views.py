"""What was decoded, as TensorBoard shows it: figures and marked answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from specdraft.callbacks.figures import acceptance_figure, accepted_lengths_figure, round_latency_figure
from specdraft.callbacks.report import marked_sample
from specdraft.decoding import RequestResult

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

PARTS = ("draft", "correct", "verify", "host")


def draw(
    writer: SummaryWriter, curves: Mapping[str, Tensor], values: Mapping[str, float], step: int, name: str
) -> None:
    """Log the figures of a decoding; nothing without matplotlib.

    Args:
        writer: Where to.
        curves: ``survival`` ``[K]``, ``acceptance`` ``[K]`` and ``histogram`` ``[K + 1]``.
        values: Values by name, under ``decode/``.
        step: Training step.
        name: Takes the place of ``decode`` in the tags.
    """
    parts = {part: values[f"decode/round_ms/{part}"] for part in PARTS}
    figures = {
        "acceptance": acceptance_figure(curves["survival"].tolist(), curves["acceptance"].tolist()),
        "accepted_lengths": accepted_lengths_figure(curves["histogram"].tolist(), values["decode/mat"]),
        "round_latency": round_latency_figure(parts, values["decode/speedup"]),
    }
    for tag, figure in figures.items():
        if figure is not None:
            writer.add_figure(f"{name}/{tag}", figure, step)


def write_samples(
    writer: SummaryWriter,
    tokenizer: Any,
    prompts: Sequence[tuple[str, str]],
    results: Sequence[RequestResult],
    step: int,
    name: str,
) -> None:
    """Log one answer of every family of prompts, accepted drafts bold.

    Args:
        writer: Where to.
        tokenizer: The target's.
        prompts: Family and text of every prompt.
        results: Their continuations.
        step: Training step.
        name: Takes the place of ``decode`` in the tag.
    """
    shown: dict[str, str] = {}
    for (family, prompt), result in zip(prompts, results, strict=True):
        if family not in shown:
            mat = 1 + sum(result.accepted) / max(result.rounds, 1)
            head = f"{family or 'prompt'}, MAT {mat:.2f} over {result.rounds} rounds"
            quoted = "\n".join(f"> {line}" for line in prompt.split("\n"))
            shown[family] = f"#### {head}\n\n{quoted}\n\n{marked_sample(tokenizer, result.tokens, result.accepted)}"
    if shown:
        note = "Accepted drafts bold, the target's own tokens plain, rounds divided by a bar."
        writer.add_text(f"{name}/sample", "\n\n".join([note, *shown.values()]), step)
