"""Which layers of a target are tapped."""

from __future__ import annotations


def evenly_spaced_taps(num_layers: int, count: int) -> tuple[int, ...]:
    """Spread ``count`` taps over a target of ``num_layers`` layers.

    One tap is the middle layer; n taps are ``round(1 + i (num_layers - 4) / (n - 1))``, the formula of the
    published DFlash drafters over the number of *taps* (not of draft layers).

    Args:
        num_layers: Decoder layers of the target.
        count: Number of taps, at least 1.

    Raises:
        ValueError: If so many distinct taps do not fit into the target.
    """
    if count < 1:
        raise ValueError(f"the number of taps must be at least 1, got {count}")
    if count == 1:
        return (num_layers // 2,)
    first, last = (1, num_layers - 3) if num_layers >= 3 + count else (0, num_layers - 1)
    taps = tuple(round(first + i * (last - first) / (count - 1)) for i in range(count))
    if len(set(taps)) != count:
        raise ValueError(f"{count} distinct taps do not fit into a target of {num_layers} layers; ask for fewer")
    return taps


def check_taps(taps: tuple[int, ...], num_layers: int) -> None:
    """Refuse taps that are out of range, negative or named twice.

    Raises:
        ValueError: Naming the offending tap and the valid range.
    """
    for tap in taps:
        if not 0 <= tap < num_layers:
            raise ValueError(f"tap {tap} is out of range: the target has layers 0..{num_layers - 1}")
    if len(set(taps)) != len(taps):
        twice = next(tap for tap in taps if taps.count(tap) > 1)
        raise ValueError(f"tap {twice} is named twice in {list(taps)}; name each layer once")
