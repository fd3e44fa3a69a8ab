from __future__ import annotations

import doctest
import importlib
import pickle
import socket

import pytest
import torch
import torch.multiprocessing as mp
from torchmetrics import Metric, MetricCollection

from specdraft.metrics import MeanAcceptedTokens, PrefixAcceptance, match_prefix

METRICS = [lambda: PrefixAcceptance(4), MeanAcceptedTokens, lambda: MeanAcceptedTokens(bonus=False)]


def make_rounds(count: int = 200, drafts: int = 4, seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    drafted = torch.where(
        torch.rand(count, generator=g) < 0.8, drafts, torch.randint(0, drafts + 1, (count,), generator=g)
    )
    accepted = torch.minimum(drafted, torch.randint(0, drafts + 1, (count,), generator=g))
    return accepted, drafted


def reference(accepted, drafted, drafts):
    """Slow loop over rounds and positions."""
    rounds = list(zip(accepted.tolist(), drafted.tolist(), strict=True))
    survival, acceptance, histogram = [], [], []
    for k in range(1, drafts + 1):
        hits = offered = 0
        for a, d in rounds:
            if a >= k:
                hits += 1
            if a >= k - 1 and d >= k:
                offered += 1
        survival.append(hits / len(rounds) if rounds else 0.0)
        acceptance.append(hits / offered if offered else 0.0)
    for k in range(drafts + 1):
        histogram.append(sum(a == k for a, _ in rounds) / len(rounds) if rounds else 0.0)
    mean = sum(a for a, _ in rounds) / len(rounds) if rounds else 0.0
    mat = mean + 1 if rounds else 0.0
    return {"survival": survival, "acceptance": acceptance, "histogram": histogram}, mat, mean


def check(metrics: list[Metric], accepted, drafted, drafts=4):
    prefix, mat, mean = reference(accepted, drafted, drafts)
    got = metrics[0].compute()
    assert set(got) == set(prefix)
    for name, values in prefix.items():
        assert got[name].tolist() == pytest.approx(values, abs=1e-6)
    assert float(metrics[1].compute()) == pytest.approx(mat, abs=1e-6)
    assert float(metrics[2].compute()) == pytest.approx(mean, abs=1e-6)
    if len(accepted):  # mat = 1 + sum_k S_k
        assert float(metrics[1].compute()) == pytest.approx(1 + float(got["survival"].sum()), abs=1e-5)


@pytest.mark.parametrize("splits", [[200], [1, 50, 0, 149], [100, 100]])
def test_split_batches_equal_reference(splits):
    accepted, drafted = make_rounds()
    metrics = [make() for make in METRICS]
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    for a, d in zip(accepted[order].split(splits), drafted[order].split(splits), strict=True):
        for metric in metrics:
            metric.update(a, d)
    check(metrics, accepted, drafted)


@pytest.mark.parametrize("value", [0, 4])
def test_none_and_all_accepted(value):
    accepted = torch.full((7,), value)
    metrics = [make() for make in METRICS]
    for metric in metrics:
        metric.update(accepted)
    check(metrics, accepted, torch.full((7,), 4))


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_no_rounds_is_zero():
    none = torch.zeros(0, dtype=torch.int64)
    check([make() for make in METRICS], none, none)


def test_one_draft():
    metric = PrefixAcceptance(1)
    metric.update(torch.tensor([1, 0, 1, 1]))
    assert metric.compute()["acceptance"].flatten().tolist() == [0.75]  # torchmetrics squeezes single elements


@pytest.mark.parametrize("make", METRICS)
def test_metric_contract(make):
    accepted, drafted = make_rounds()
    metric = make()
    for name, state in metric.metric_state.items():
        assert state.dtype == torch.int64, name
        assert metric._reductions[name].__name__ == "dim_zero_sum"
    assert metric.state_dict() == {}
    assert metric.full_state_update is False
    batch = metric(accepted[:50], drafted[:50])  # forward: value of the batch, state accumulates
    fresh = make()
    fresh.update(accepted[:50], drafted[:50])
    equal(batch, fresh.compute())
    copies = [metric.clone(), pickle.loads(pickle.dumps(metric))]
    for each in [metric, *copies]:
        each.update(accepted[50:], drafted[50:])
    for each in copies:
        equal(each.compute(), metric.compute())
    metric.reset()
    assert all(not state.any() for state in metric.metric_state.values())
    large = make()
    large.update(torch.tensor([1, 2]))
    first = next(iter(large.metric_state))
    getattr(large, first).fill_(2**24)
    large.update(torch.tensor([1, 2]))
    assert int(getattr(large, first).flatten()[0]) > 2**24  # float32 would stand still


def equal(left, right):
    if isinstance(left, dict):
        for name in left:
            equal(left[name], right[name])
    else:
        assert torch.allclose(left, right)


def test_collection_of_siblings_keeps_them_apart():
    """All-zero first batch: states equal in value, which merges metrics whose states are named alike."""
    names = [set(make().metric_state) for make in METRICS[:2]]
    assert not names[0] & names[1]
    collection = MetricCollection({"by_position": PrefixAcceptance(4), "mat": MeanAcceptedTokens()})
    single = [make() for make in METRICS]
    zeros = torch.zeros(5, dtype=torch.int64)
    accepted, drafted = make_rounds()
    for a, d in [(zeros, zeros), (accepted, drafted)]:
        collection.update(a, d)
        for metric in single:
            metric.update(a, d)
    values = collection.compute()
    assert float(values["mat"]) == float(single[1].compute())
    equal(values["survival"], single[0].compute()["survival"])


@pytest.mark.parametrize(
    ("accepted", "drafted", "match"),
    [
        (torch.zeros(2, 3, dtype=torch.int64), None, r"accepted must be \[R\].*\[2, 3\]"),
        (torch.zeros(3), None, "integers, got torch.float32"),
        (torch.zeros(3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), r"drafted must be \[R\].*\[2\]"),
    ],
)
def test_refuses(accepted, drafted, match):
    for make in METRICS:
        with pytest.raises(ValueError, match=match):
            make().update(accepted, drafted)


def test_refuses_lengths_outside():
    for value in (5, -1):
        metric = PrefixAcceptance(4)
        metric.update(torch.tensor([value]))
        with pytest.raises(ValueError, match=r"outside 0\.\.4"):
            metric.compute()
    with pytest.raises(ValueError, match="num_drafts"):
        PrefixAcceptance(0)


def test_match_prefix_equals_loop():
    g = torch.Generator().manual_seed(0)
    predicted = torch.randint(0, 2, (6, 50, 5), generator=g)
    labels = torch.randint(0, 2, (6, 50, 5), generator=g)
    supervised = torch.rand(6, 50, 5, generator=g) < 0.8
    accepted, drafted = match_prefix(predicted, labels, supervised)
    assert accepted.dtype == drafted.dtype == torch.int64
    for n in range(6):
        for r in range(50):
            hits = offered = 0
            alive = True
            for k in range(5):
                if not supervised[n, r, k]:
                    break
                offered += 1
                alive = alive and bool(predicted[n, r, k] == labels[n, r, k])
                hits += alive
            assert (int(accepted[n, r]), int(drafted[n, r])) == (hits, offered)
    with pytest.raises(ValueError, match="same shape"):
        match_prefix(predicted, labels[..., :4], supervised)


def test_plot():
    pytest.importorskip("matplotlib").use("Agg")
    for make in METRICS:
        metric = make()
        metric.update(*make_rounds())
        figure, ax = metric.plot()
        assert len(ax.lines) == (2 if isinstance(metric, PrefixAcceptance) else 1)
        assert metric.plot(ax=ax)[1] is ax
        figure.clf()


@pytest.mark.parametrize("name", ["functional", "acceptance"])
def test_examples(name):
    module = importlib.import_module(f"specdraft.metrics.{name}")
    result = doctest.testmod(module, extraglobs={"torch": torch})
    assert result.attempted > 0
    assert result.failed == 0


def _worker(rank: int, port: int) -> None:
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    accepted, drafted = make_rounds()
    share = slice(0, 30) if rank == 0 else slice(30, 200)  # unequal shares: averaging would show
    metrics = [make() for make in METRICS]
    for metric in metrics:
        metric.update(accepted[share], drafted[share])
    check(metrics, accepted, drafted)
    torch.distributed.destroy_process_group()


@pytest.mark.ddp
def test_two_processes_pool():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_worker, args=(port,), nprocs=2)
