"""Recall and oracle prefix against plain loops."""

from __future__ import annotations

import pickle

import pytest
import torch

from specdraft.metrics import CandidateRecall, OraclePrefix


def rounds(seed=0, count=40, slots=5):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(slots + 1, (count, 1), generator=g)
    return torch.randint(8, (count, slots), generator=g), torch.arange(slots) < lengths


def test_against_loops():
    ranks, supervised = rounds()
    recall, oracle = CandidateRecall((1, 3, 8)), OraclePrefix(4)
    for own, mask in zip(ranks.split(7), supervised.split(7), strict=True):
        recall.update(own[mask])
        oracle.update(own, mask)
    slots = [int(r) for r, s in zip(ranks.flatten(), supervised.flatten(), strict=True) if s]
    torch.testing.assert_close(
        recall.compute(), torch.tensor([sum(r < k for r in slots) / len(slots) for k in (1, 3, 8)])
    )
    total = 0
    for row, mask in zip(ranks.tolist(), supervised.tolist(), strict=True):
        for rank, counts in zip(row, mask, strict=True):
            if not counts or rank >= 4:
                break
            total += 1
    torch.testing.assert_close(oracle.compute(), torch.tensor(total / len(ranks) + 1))
    for metric in (recall, oracle):
        assert pickle.loads(pickle.dumps(metric)).compute().equal(metric.compute())
        assert not metric.state_dict()
        metric.reset()
        assert not metric.compute().any()


def test_refuses():
    with pytest.raises(ValueError, match="ks"):
        CandidateRecall(())
    with pytest.raises(ValueError, match="k must"):
        OraclePrefix(0)
    with pytest.raises(ValueError, match=r"\[R, K\]"):
        OraclePrefix().update(torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"\[R\]"):
        CandidateRecall().update(torch.zeros(2, 3, dtype=torch.int64))
