"""Static decoding: the same outputs as the eager loops, replayed by a stand-in here and by CUDA graphs on a GPU."""

from __future__ import annotations

import pytest
import torch
from decoding_stubs import StubDrafter, StubTarget
from test_autoregressive import make_requests
from test_engine import decode

from specdraft.correctors import NoCorrector
from specdraft.decoding import Request, SamplingParams, autoregressive_decode, speculative_decode
from specdraft.decoding.graphs import aligned, capture, wanted
from specdraft.drafters import DFlash
from specdraft.targets import HFTarget

LOOPS = ("specdraft.decoding.engine", "specdraft.decoding.autoregressive")


@pytest.fixture
def replayed(monkeypatch):
    """Static mode without a GPU: a replay is a call, on tensors that must have stayed where they are."""
    calls = []

    def stand_in(stages, caches, device):
        for cache in caches:
            cache.static = True
        for stage in stages * 2:  # harmless to repeat
            stage()
        places = [(c.lengths.data_ptr(), c.keys[0].data_ptr()) for c in caches]

        def replay(stage):
            def run():
                assert places == [(c.lengths.data_ptr(), c.keys[0].data_ptr()) for c in caches]
                calls.append(stage)
                stage()

            return run

        return [replay(stage) for stage in stages]

    for loop in LOOPS:
        monkeypatch.setattr(f"{loop}.wanted", lambda *_: True)
        monkeypatch.setattr(f"{loop}.capture", stand_in)
    return calls


@pytest.mark.parametrize("concurrency", [1, 4, 9])
@pytest.mark.parametrize("modulus", [0, 1, 3])
def test_static_loops_equal_the_eager_ones(replayed, concurrency, modulus):
    target = StubTarget()
    drafter = StubDrafter(target, 5, modulus=modulus)
    requests = make_requests(25, seed=modulus)
    expected = [target.greedy(r.prompt_ids, r.max_new_tokens, r.stop_ids) for r in requests]
    plain = autoregressive_decode(target, requests, concurrency=concurrency)
    done = decode(target, drafter, requests, concurrency=concurrency)
    assert [r.tokens for r in plain.results] == [r.tokens for r in done.results] == expected
    assert len(replayed) == plain.steps + 4 * done.steps


def tiny(device="cpu", dtype=torch.float32):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    target = HFTarget(LlamaForCausalLM(config).to(device, dtype), name="tiny", taps=[0, 2])
    drafter = DFlash(target.spec, num_layers=1, block_size=4).to(device, dtype).eval()
    return target, drafter


def outputs(target, drafter, requests, **options):
    corrector = NoCorrector(target.spec)
    plain = autoregressive_decode(target, requests, **options)
    done = speculative_decode(
        target, drafter, corrector, target.head, requests, mask_token_id=target.spec.mask_token_id, **options
    )
    return [[r.tokens for r in out.results] for out in (plain, done)]


REQUESTS = [Request(list(range(1, 2 + i)), 6 + 3 * (i % 4), (5, 9)) for i in range(7)]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_static_forward_of_a_model(replayed, concurrency, request):
    mine = outputs(*tiny(), REQUESTS, concurrency=concurrency)
    assert replayed
    request.getfixturevalue("monkeypatch").undo()
    assert mine == outputs(*tiny(), REQUESTS, concurrency=concurrency)
    assert mine[0] == mine[1]


def test_when_graphs_are_wanted():
    target, _ = tiny()
    assert target.static_shapes
    assert not wanted(target, SamplingParams(), True)  # no CUDA device
    assert [aligned(n) for n in (1, 64, 65)] == [64, 64, 128]


gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("concurrency", [pytest.param(n, marks=gpu) for n in (1, 3, 7)])
def test_captured_loops_equal_the_eager_ones(concurrency, recwarn):
    target, drafter = tiny("cuda")
    assert wanted(target, SamplingParams(), None)
    assert not wanted(target, SamplingParams(), False)
    assert not wanted(target, SamplingParams(1.0), None)
    eager = outputs(target, drafter, REQUESTS, concurrency=concurrency, graphs=False)
    assert outputs(target, drafter, REQUESTS, concurrency=concurrency) == eager
    assert eager[0] == eager[1]
    assert not [w for w in recwarn if "CUDA graphs" in str(w.message)]


@pytest.mark.parametrize("concurrency", [pytest.param(2, marks=gpu)])
def test_a_corrector_that_asks_the_device_runs_eagerly(concurrency):
    target, drafter = tiny("cuda")

    class Asking(NoCorrector):
        def propose(self, hidden, *rest):
            hidden.sum().item()
            return super().propose(hidden, *rest)

    options = {"mask_token_id": target.spec.mask_token_id, "concurrency": concurrency}
    expected = [r.tokens for r in autoregressive_decode(target, REQUESTS, concurrency=concurrency).results]
    with pytest.warns(UserWarning, match="CUDA graphs are not used"):
        done = speculative_decode(target, drafter, Asking(target.spec), target.head, REQUESTS, **options)
    assert [r.tokens for r in done.results] == expected


@pytest.mark.parametrize("count", [pytest.param(2, marks=gpu)])
def test_capture_replays_what_it_saw(count):
    x, y = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
    replays = capture([lambda: y.copy_(x + 1), lambda: y.mul_(count)], [], x.device)
    assert replays is not None
    x.fill_(3)
    for replay in replays:
        replay()
    assert y.tolist() == [4 * count] * 4
