"""JSON, Markdown and figure of a tuning."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specdraft.decoding import TunedTables
from specdraft.decoding.tuned import ALL
from specdraft.scratch import write_text
from specdraft.tune.candidates import Candidate
from specdraft.tune.check import Check
from specdraft.tune.figure import tuning_figure
from specdraft.tune.prediction import Grid
from specdraft.tune.search import has_one_peak


def write_reports(
    folder: Path,
    candidates: Sequence[Candidate],
    labels: Mapping[str, str],
    checks: Sequence[Check],
    facts: dict[str, Any],
) -> str:
    """Write ``tune.json``, ``tune.md`` and ``tune.png``; returns the Markdown.

    Args:
        folder: Where they go; made if needed.
        candidates: Measured checkpoints, the chosen one first.
        labels: Short names by path.
        checks: One per temperature, or none.
        facts: How they were made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "facts": facts,
        "checkpoints": [_candidate_values(candidate) for candidate in candidates],
        "checks": [_check_values(check) for check in checks],
    }
    write_text(folder / "tune.json", json.dumps(values, indent=1) + "\n")
    best = candidates[0]
    figure = tuning_figure(best.tables, best.grids, checks)
    if figure is not None:
        figure.savefig(folder / "tune.png", dpi=150)
    text = markdown(candidates, labels, checks, facts, figure is not None)
    write_text(folder / "tune.md", text)
    return text


def markdown(
    candidates: Sequence[Candidate],
    labels: Mapping[str, str],
    checks: Sequence[Check],
    facts: dict[str, Any],
    figure: bool,
) -> str:
    """The whole report; arguments as of :func:`write_reports`, and whether there is a figure."""
    best = candidates[0]
    versions = ", ".join(f"{name} {facts['versions'][name]}" for name in ("specdraft", "torch", "transformers"))
    out = [
        "# Tuning",
        "",
        f"Target {facts['target']} in {facts['target_dtype']}, {facts['device_name']}; {facts['num_prompts']} prompts "
        f"of {facts['prompts']}, at most {facts['max_new_tokens']} new tokens, top_p {facts['top_p']:g}, top_k "
        f"{facts['top_k']}, seed {facts['seed']}; latencies are medians of {facts['repeats']} decodes; {versions}.",
        "",
        "MAT counts the bonus token and is pooled over rounds. Tokens/s leave the prefill out and count rounds with "
        "all rows busy. A workload is a family of prompts; `all` is all of them.",
        "",
        "## Checkpoints",
        "",
        *_table(
            ["checkpoint", "depth", "tokens/s predicted"],
            ([labels[c.path], str(c.depth), f"{c.score:.1f}"] for c in candidates),
        ),
        "",
        "Geometric mean over temperatures and concurrencies, best block size each, all prompts. The first one is taken."
        + _searched(candidates, len(labels)),
    ]
    for table in best.tables:
        out += ["", f"## Temperature {table.temperature:g}", "", *_measured(table), "", *_choices(table)]
        out += [
            line for check in checks if check.temperature == table.temperature for line in ["", *_check(check, table)]
        ]
    if figure:
        out += ["", "![MAT, latency and tokens/s against block size and concurrency](tune.png)"]
    return "\n".join(out) + "\n"


def _searched(candidates: Sequence[Candidate], count: int) -> str:
    if len(candidates) < count:
        return f" The search over depths skipped {count - len(candidates)} of {count}; --all-checkpoints measures them."
    by_depth = sorted(candidates, key=lambda candidate: candidate.depth)
    if count < 3 or len({candidate.depth for candidate in candidates}) < count:
        return ""
    if has_one_peak([candidate.score for candidate in by_depth]):
        return " Over the depths there is one peak, as the search assumes."
    return " Over the depths there is more than one peak, so that the search might have missed the best."


def choices_table(candidate: Candidate) -> str:
    """Chosen block sizes, a table per temperature."""
    return "\n".join(f"temperature {table.temperature:g}\n" + "\n".join(_choices(table)) for table in candidate.tables)


def _measured(table: TunedTables) -> list[str]:
    how = "at the largest block size, shorter ones are its beginning" if table.nested else "at every block size"
    mats = [[name, *(f"{table.mat(name, size):.3f}" for size in table.sizes)] for name in table.survival]
    levels = sorted(next(iter(table.latency.values())))
    times = [[str(rows), *(f"{1e3 * table.latency[size][rows]:.2f}" for size in table.sizes)] for rows in levels]
    return [
        *_table(["MAT by workload", *_sizes(table)], mats),
        "",
        f"From survival curves measured {how}.",
        "",
        *_table(["ms per round by concurrency", *_sizes(table)], times),
    ]


def _choices(table: TunedTables) -> list[str]:
    levels = sorted(next(iter(table.choices.values())))
    rows = [[name, *(str(chosen[level]) for level in levels)] for name, chosen in table.choices.items()]
    return _table(["chosen block size", *(f"concurrency {level}" for level in levels)], rows)


def _check(check: Check, table: TunedTables) -> list[str]:
    heads = ["workload", "concurrency", "chosen B", "predicted tokens/s", "measured", "error", "at equal speed"]
    heads += ["of MAT", "of latency"]
    heads += ["best B", "regret", "best fixed B", "gain", *check.policies]
    rows = []
    for a in check.assessments:
        mat = table.mat(a.workload, a.chosen) / check.mats[a.workload, a.concurrency][a.chosen] - 1
        found = check.latencies[a.workload, a.concurrency][a.chosen]
        latency = table.seconds(a.chosen, a.concurrency) * a.drift / found - 1
        rates = [f"{rates[a.workload, a.concurrency]:.1f}" for rates in check.policies.values()]
        numbers = [f"{a.predicted:.1f}", f"{a.measured:.1f}", f"{a.error:+.1%}", f"{a.error_at_equal_speed:+.1%}"]
        numbers += [f"{mat:+.1%}", f"{latency:+.1%}", str(a.best), f"{a.regret:.1%}"]
        rows.append([a.workload, str(a.concurrency), str(a.chosen), *numbers, str(a.fixed), f"{a.gain:+.1%}", *rates])
    chosen = sorted({a.chosen for a in check.assessments})
    differ = f"block sizes {', '.join(map(str, chosen))} are chosen" if len(chosen) > 1 else "one block size serves all"
    plain = ", ".join(f"{rate:.1f} at concurrency {rows}" for rows, rate in check.baseline.items())
    # all together is the sum of the others and no workload of its own
    each = [a for a in check.assessments if a.workload != ALL] or check.assessments
    count = len(each)
    return [
        *_table(heads, rows),
        "",
        f"Means over the workloads: error {sum(abs(a.error) for a in each) / count:.1%} (absolute), at equal speed "
        f"{sum(abs(a.error_at_equal_speed) for a in each) / count:.1%}, regret "
        f"{sum(a.regret for a in each) / count:.1%} against the exhaustive grid, gain "
        f"{sum(a.gain for a in each) / count:+.1%} over the best fixed block size; {differ}. "
        "Equal speed: the prediction divided by how much slower the autoregressive loop was in the check than among "
        f"the latencies, {min(a.drift for a in check.assessments):.2f} to "
        f"{max(a.drift for a in check.assessments):.2f} times; what is left is an error of MAT or of latency. The last "
        "columns are tokens/s decoded with the policies themselves. Lean "
        f"autoregressive loop: {plain} tokens/s.",
    ]


def _sizes(table: TunedTables) -> list[str]:
    return [f"B={size}" for size in table.sizes]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [heads, [":--", *["--:"] * (len(heads) - 1)], *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def _candidate_values(candidate: Candidate) -> dict[str, Any]:
    tables = [
        {**asdict(table), "predicted": _grid_values(grid)}
        for table, grid in zip(candidate.tables, candidate.grids, strict=True)
    ]
    return {"path": candidate.path, "depth": candidate.depth, "score": candidate.score, "tables": tables}


def _check_values(check: Check) -> dict[str, Any]:
    return {
        "temperature": check.temperature,
        "measured": _grid_values(check.measured),
        "mat": _grid_values(check.mats, "mat"),
        "round_seconds": _grid_values(check.latencies, "round_seconds"),
        "policies": {
            name: [{"workload": w, "concurrency": c, "tokens_per_second": rate} for (w, c), rate in rates.items()]
            for name, rates in check.policies.items()
        },
        "ar_tokens_per_second": check.baseline,
        "assessments": [
            {
                **asdict(a),
                "error": a.error,
                "error_at_equal_speed": a.error_at_equal_speed,
                "gain": a.gain,
                "regret": a.regret,
            }
            for a in check.assessments
        ],
    }


def _grid_values(grid: Grid, name: str = "tokens_per_second") -> list[dict[str, Any]]:
    return [{"workload": w, "concurrency": c, name: dict(values)} for (w, c), values in grid.items()]
