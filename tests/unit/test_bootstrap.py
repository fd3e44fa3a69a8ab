"""Intervals over prompts: pairs, coverage, files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specdraft.bootstrap import FIELDS, common, interval, mat, read_counts, speedup
from specdraft.callbacks.prompt_counts import counts, digest, write_counts
from specdraft.decoding import RequestResult


def prompts(count: int, rng: np.random.Generator, level: np.ndarray) -> np.ndarray:
    """Prompts of 20 rounds; ``level`` is each one's mean of accepted drafts."""
    accepted = rng.poisson(20 * level)
    tokens = 20 + accepted
    return np.stack([np.full(count, 20), accepted, tokens, np.full(count, 1.0), tokens, tokens / 20], 1).astype(float)


def test_pooled_statistics() -> None:
    sums = np.array([10.0, 15.0, 25.0, 2.0, 25.0, 5.0])
    assert float(mat(sums)) == 2.5
    assert float(speedup(sums)) == 2.5
    assert float(mat(np.zeros(6))) == 1.0


def test_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        found = interval(mat, [prompts(60, rng, rng.gamma(2.0, 0.5, 60))], resamples=400)
        assert found is not None
        covered += found[0] <= 2.0 <= found[1]
    assert 0.88 < covered / 200 <= 1.0


def test_pairs_cancel_what_both_runs_share() -> None:
    rng = np.random.default_rng(1)
    level = rng.gamma(2.0, 0.5, 50)
    one, other = prompts(50, rng, level), prompts(50, rng, level + 0.2)
    paired = interval(lambda a, b: mat(b) - mat(a), [one, other])
    loose = interval(lambda a, b: mat(b) - mat(a), [one, other[rng.permutation(50)]])
    assert paired is not None
    assert loose is not None
    assert paired[0] > 0
    assert paired[1] - paired[0] < 0.7 * (loose[1] - loose[0])


def test_the_same_seed_gives_the_same_interval_and_one_prompt_none() -> None:
    values = prompts(9, np.random.default_rng(2), np.ones(9))
    assert interval(mat, [values]) == interval(mat, [values])
    assert interval(mat, [values[:1]]) is None
    assert interval(mat, [values[:0]]) is None


def test_common_prompts_in_one_order() -> None:
    one = {"b": np.full(6, 1.0), "a": np.full(6, 2.0), "c": np.full(6, 3.0)}
    other = {"a": np.full(6, 4.0), "b": np.full(6, 5.0)}
    first, second = common([one, other])
    assert first[:, 0].tolist() == [2.0, 1.0]
    assert second[:, 0].tolist() == [4.0, 5.0]
    assert common([{}, other])[0].shape == (0, 6)


def test_what_the_callback_writes_is_read(tmp_path: Path) -> None:
    drafted = RequestResult([1, 2, 3, 4, 5], [2, 0], [3, 1], arrivals=[0.5, 0.7, 1.0])
    plain = RequestResult([1, 2, 3, 4, 5], [0] * 4, [0] * 4, arrivals=[0.5, 1.0, 1.5, 2.0, 2.5])
    (nothing, row) = counts([drafted], [plain], 2, slice(1, None, 2))
    assert nothing == [0.0] * len(FIELDS)
    names = [digest(ids) for ids in ([1, 2], [3], [1, 2])]
    assert names[0] == names[2] != names[1]
    for step, scale in ((100, 1), (300, 2)):
        write_counts(tmp_path / "decoded" / f"val-{step}.csv", names, ["x"] * 3, [[scale * v for v in row]] * 3)
    found = read_counts(tmp_path, 250)
    assert list(found) == names[:2]
    np.testing.assert_allclose(found[names[1]], [2, 2, 4, 0.5, 4, 2.0])
    np.testing.assert_allclose(found[names[0]], [4, 4, 8, 1.0, 8, 4.0])
    assert float(read_counts(tmp_path, 300)[names[1]][0]) == 4
    assert read_counts(tmp_path, 50) == {}
    assert read_counts(tmp_path / "nowhere", 50) == {}


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "decoded").mkdir()
    (tmp_path / "decoded" / "val-1.csv").write_text("prompt,rounds\nx,3\n")
    with pytest.raises(ValueError, match=r"val-1.csv has no column 'accepted'"):
        read_counts(tmp_path, 1)
