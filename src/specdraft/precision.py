"""Precision of fp32 matrix products while training and extracting features."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def has_fast_bf16() -> bool:
    """Whether the CPU multiplies bfloat16 in hardware (AMX or AVX-512 BF16): two to three times fp32 where measured."""
    probes = (getattr(torch.cpu, name, None) for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"))
    return any(probe is not None and probe() for probe in probes)


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Run fp32 matrix products at ``highest``, ``high`` or ``medium`` precision.

    ``auto`` is medium (bfloat16 products, fp32 sums) on a CPU with :func:`has_fast_bf16`, else highest.
    """
    if precision == "auto":
        precision = "medium" if has_fast_bf16() and not torch.cuda.is_available() else "highest"
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
