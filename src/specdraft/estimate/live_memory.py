"""How much memory is alive while operations run on tensors that have shapes but no data."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


class LiveMemory(TorchDispatchMode):
    """Follow every storage from its first operation until nobody holds it, and count matrix products.

    Two operations whose result has no shape before they run are given their largest one, as the rest of the step then
    is: ``nonzero`` finds every element but those known to be false, ``unique`` at most ``vocabulary`` values.

    Args:
        vocabulary: Most different values of a tensor of ids.
        head_rows: Rows D of the head; what a chunk of its logits takes is labelled apart.
        true: How many elements of a tensor of so many are true, where not all are.

    Attributes:
        label: What new storages are booked under.
        peak: Largest number of bytes alive at once.
        at_peak: Bytes by label at that moment.
        flops: Floating-point operations of matrix products, and what others report.
    """

    def __init__(self, vocabulary: int, head_rows: int, true: dict[int, int] | None = None) -> None:
        super().__init__()
        self.true = true or {}
        self.vocabulary = vocabulary
        self.head_rows = head_rows
        self.label = "rest of the step"
        self.alive: Counter[str] = Counter()
        self.peak = 0
        self.at_peak: dict[str, int] = {}
        self.flops = 0.0
        self._books: dict[int, tuple[str, int, Any]] = {}

    @contextmanager
    def booked(self, label: str) -> Iterator[None]:
        """Book what is allocated inside under a label."""
        before, self.label = self.label, label
        try:
            yield
        finally:
            self.label = before

    def hold(self, label: str, *tensors: Tensor) -> None:
        """Book existing tensors under a label; they may have been booked under another one."""
        for tensor in tensors:
            self._forget(id(tensor.untyped_storage()))
            self._see(tensor, label)

    def reset_peak(self) -> None:
        """Look for the peak from here on."""
        self.peak, self.at_peak = sum(self.alive.values()), dict(self.alive)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.nonzero.default:
            count = args[0].numel()
            out = args[0].new_empty(self.true.get(count, count), args[0].ndim, dtype=torch.int64)
        elif func is torch.ops.aten._unique2.default:
            values = args[0].new_empty(min(args[0].numel(), self.vocabulary))
            out = (values, torch.empty_like(args[0]), values)
        else:
            out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                logits = leaf.ndim > 1 and leaf.shape[-1] == self.head_rows
                self._see(leaf, "logits of a chunk" if logits else self.label)
        return out

    def _see(self, tensor: Tensor, label: str) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._books:
            return
        size = storage.nbytes()
        # the reference keeps the callback alive, and the callback the books straight
        self._books[key] = (label, size, weakref.ref(storage, lambda _: self._forget(key)))
        self.alive[label] += size
        total = sum(self.alive.values())
        if total > self.peak:
            self.peak, self.at_peak = total, dict(self.alive)

    def _forget(self, key: int) -> None:
        label, size, _ = self._books.pop(key, ("", 0, None))
        self.alive[label] -= size
