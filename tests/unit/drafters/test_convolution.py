"""DFlash 2's convolutions against a loop over slots, channels and taps."""

from __future__ import annotations

import pytest
import torch

from specdraft.drafters import DFlash
from specdraft.drafters.convolution import BlockConvolution


@pytest.mark.parametrize(("taps", "width"), [(1, 4), (2, 4), (3, 2), (5, 3)])
@torch.no_grad()
def test_equals_the_loop(taps: int, width: int) -> None:
    torch.manual_seed(0)
    size, group, blocks = 6, 2, 3
    conv = BlockConvolution(size, taps, group)
    conv.base_kernel.normal_()
    conv.kernel_projection.weight.normal_()
    source, x = torch.randn(2, 2, blocks * width, size).unbind()
    dynamic = (source @ conv.kernel_projection.weight.T).view(2, blocks * width, 2, taps, size // group)
    for side, kernel in enumerate(conv.kernels(source)):
        got = conv.convolved(x, side, kernel, width)
        for n in range(2):
            for t in range(blocks * width):
                for c in range(size):
                    reach = range(min(taps, t % width + 1))  # not before the block
                    factors = [conv.base_kernel[side, i, c] + dynamic[n, t, side, i, c // group] for i in reach]
                    want = sum(f * x[n, t - i, c] for i, f in zip(reach, factors, strict=True))
                    torch.testing.assert_close(got[n, t, c], want)


@torch.no_grad()
def test_starts_as_the_drafter_without(spec, make_blocks) -> None:
    blocks = make_blocks(((9, 7, 5), (6, 11)))
    plain = DFlash(spec, num_layers=2, block_size=4, init_std=0.2)
    convolved = DFlash(spec, num_layers=2, block_size=4, conv_kernel_size=2, conv_group_size=3)
    missing = convolved.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert len(missing) == 2 * 2 * 2
    torch.testing.assert_close(convolved(*blocks.tensors()), plain(*blocks.tensors()))
    added = sum(p.numel() for p in convolved.parameters()) - sum(p.numel() for p in plain.parameters())
    size = spec.hidden_size
    assert added == 4 * (2 * 2 * size + 2 * 2 * (size // 3) * size)


def test_gradients_reach_all_kernels(spec, make_blocks) -> None:
    drafter = DFlash(spec, num_layers=1, block_size=4, conv_kernel_size=2, conv_group_size=3)
    out = drafter(*make_blocks(((14,),)).tensors())
    (out * torch.randn_like(out)).sum().backward()
    for name, parameter in drafter.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name  # noqa: PT018


def test_refuses(spec) -> None:
    with pytest.raises(ValueError, match="conv_group_size 5 does not divide the width"):
        DFlash(spec, conv_kernel_size=2, conv_group_size=5)
    with pytest.raises(ValueError, match="conv_kernel_size must be 0 for none or positive, got -1"):
        DFlash(spec, conv_kernel_size=-1)
