"""Windows over the last dimensions, for pooling, resampling and im2col.

A window is taken apart into taps: the k-th tap holds, for every window, its k-th element. One
dimension at a time, that is k + k strided slices for a window of k x k, and they fuse into one
loop, where a reduce_window does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import NamedTuple

import torch

from .. import hlo
from ..hlo import Value

Sizes = Sequence[int]
Values = tuple[Value, ...]
Combine = Callable[[Values, Values], Values]

_MANY_TAPS = 16  # above, windows are folded by doubling: fewer operations, but over all positions


def add(x: Values, y: Values) -> Values:
    """Combine single values by their sum."""
    return (hlo.add(x[0], y[0]),)


class Axis(NamedTuple):
    """How windows lie along dimension `dim`: `size` elements, `windows` of them."""

    dim: int
    size: int
    windows: int
    window: int
    stride: int
    padding: int
    dilation: int

    @property
    def extent(self) -> int:
        return (self.window - 1) * self.dilation + 1

    @property
    def cover(self) -> int:
        """How many windows may share one element."""
        return -(-self.extent // self.stride)


def axes_of(
    large: Sequence[int],
    small: Sequence[int],
    window: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes = (1,),
    rank: int = 2,
) -> list[Axis]:
    """One axis for each of the last `rank` dimensions; a single entry stands for all of them."""
    lists = [tuple(x) * (rank if len(x) == 1 else 1) for x in (window, stride or window)]
    lists += [tuple(x) * (rank if len(x) == 1 else 1) for x in (padding, dilation)]
    first = len(large) - rank
    return [
        Axis(first + i, large[first + i], small[first + i], *(given[i] for given in lists))
        for i in range(rank)
    ]


def _pad(x: Value, fill: Value, dim: int, low: int, high: int, interior: int = 0) -> Value:
    """Pad one dimension; negative amounts crop."""
    edges = [[amount if i == dim else 0 for i in range(x.ndim)] for amount in (low, high, interior)]
    return hlo.pad(x, fill, *edges)


def _padded(x: Value, axis: Axis, fill: Value) -> Value:
    """x with padding where windows hang over, and without what no window reaches."""
    last = (axis.windows - 1) * axis.stride + axis.extent
    return _pad(x, fill, axis.dim, axis.padding, last - axis.size - axis.padding)


def taps(x: Value, axis: Axis, fill: Value) -> list[Value]:
    """For each place in the window, what the windows along `axis` have there."""
    reach = (axis.windows - 1) * axis.stride + 1
    x = _padded(x, axis, fill)
    starts = range(0, axis.extent, axis.dilation)
    return [hlo.slice_in_dim(x, i, i + reach, axis.stride, axis.dim) for i in starts]


def fold(xs: Values, axis: Axis, fills: Values, combine: Combine) -> Values:
    """Combine what each window holds; `combine` is associative, and told the earlier part first."""
    if axis.window <= _MANY_TAPS:
        return reduce(combine, zip(*map(taps, xs, [axis] * len(xs), fills), strict=True))
    if axis.window == axis.stride and axis.windows * axis.window == axis.size:
        shape = list(xs[0].shape)
        shape[axis.dim : axis.dim + 1] = [axis.windows, axis.window]
        rows = [hlo.reshape(x, shape) for x in xs]
        return hlo.reduce(rows, fills, [axis.dim + 1], partial(_in_turn, combine))
    return _fold_doubling(xs, axis, fills, combine)


def _in_turn(combine: Combine, *values: Value) -> Values:
    """`combine` for a reduction, which takes elements in any order.

    The last of several values is a position, and tells which part is the earlier one.
    """
    n = len(values) // 2
    x, y = values[:n], values[n:]
    if n > 1:
        swap = hlo.lt(y[-1], x[-1])
        pairs = [
            (hlo.select(swap, b, a), hlo.select(swap, a, b)) for a, b in zip(x, y, strict=True)
        ]
        x, y = (tuple(part) for part in zip(*pairs, strict=True))
    return combine(x, y)


def _fold_doubling(xs: Values, axis: Axis, fills: Values, combine: Combine) -> Values:
    """Windows of 1, 2, 4, ... elements at all positions; a window's own size is a sum of those."""
    reach = (axis.windows - 1) * axis.stride + 1
    power = tuple(_padded(x, axis, fill) for x, fill in zip(xs, fills, strict=True))

    def part(start: int, size: int) -> Values:
        return tuple(hlo.slice_in_dim(x, start, start + size, dim=axis.dim) for x in power)

    result: Values | None = None
    done, span = 0, 1
    while True:
        if axis.window & span:
            piece = part(done * axis.dilation, reach)
            result = piece if result is None else combine(result, piece)
            done += span
        if result is not None and done == axis.window:
            return tuple(hlo.slice_in_dim(x, 0, reach, axis.stride, axis.dim) for x in result)
        size = power[0].shape[axis.dim] - span * axis.dilation
        power = combine(part(0, size), part(span * axis.dilation, size))
        span *= 2


def untap(parts: Sequence[Value], axis: Axis) -> Value:
    """The adjoint of `taps`: every tap goes back to where it was taken, and is added there."""
    zero = hlo.constant(0, parts[0].dtype)
    reach = (axis.windows - 1) * axis.stride + 1
    starts = (i * axis.dilation - axis.padding for i in range(axis.window))
    return reduce(
        hlo.add,
        (
            _pad(tap, zero, axis.dim, low, axis.size - low - reach, axis.stride - 1)
            for tap, low in zip(parts, starts, strict=True)
        ),
    )


def covering(x: Value, axis: Axis, fill: Value) -> list[Value]:
    """For each element along `axis`, what each window that may cover it holds; nearest first."""
    steps = repeat(x, axis.dim, axis.stride)
    lows = (i * axis.stride - axis.padding for i in range(axis.cover))
    size = steps.shape[axis.dim]
    return [_pad(steps, fill, axis.dim, low, axis.size - low - size) for low in lows]


def take(x: Value, dim: int, index: Sequence[int]) -> Value:
    """x at the given indices along `dim`; evenly spaced or repeated ones need no gather."""
    first, count = index[0] if index else 0, len(index)
    step = index[1] - first if count > 1 else 1
    if step > 0 and list(index) == list(range(first, first + count * step, step)):
        return hlo.slice_in_dim(x, first, first + (count - 1) * step + 1 if count else 0, step, dim)
    times = count // x.shape[dim]
    if list(index) == [i // times for i in range(x.shape[dim] * times)] and times:
        return repeat(x, dim, times)
    return hlo.gather(
        x,
        hlo.array(torch.tensor(index, dtype=torch.int32)),
        offset_dims=[i for i in range(x.ndim) if i != dim],
        collapsed=[dim],
        start_index_map=[dim],
        index_vector_dim=1,
        slice_sizes=[1 if i == dim else n for i, n in enumerate(x.shape)],
    )


def repeat(x: Value, dim: int, times: int) -> Value:
    """Each element along `dim`, `times` in a row."""
    shape = [*x.shape[:dim], x.shape[dim], times, *x.shape[dim + 1 :]]
    wide = hlo.broadcast_in_dim(x, shape, [i + (i > dim) for i in range(x.ndim)])
    return hlo.reshape(wide, [*x.shape[:dim], x.shape[dim] * times, *x.shape[dim + 1 :]])


def along(values: Sequence[float], like: Value, dim: int) -> Value:
    """Numbers known now, one for each index of `dim`, broadcast."""
    if len(set(values)) == 1:
        return hlo.full_like(like, values[0])
    table = hlo.array(torch.tensor(values, dtype=torch.float64).to(like.dtype))
    return hlo.broadcast_in_dim(table, like.shape, [dim])


def fold_ragged(
    xs: Values,
    dim: int,
    starts: Sequence[int],
    stops: Sequence[int],
    fills: Values,
    combine: Combine,
) -> Values:
    """`fold` over windows that start and stop where they are told to."""
    lengths = [b - a for a, b in zip(starts, stops, strict=True)]
    size, windows, longest = xs[0].shape[dim], len(starts), max(lengths, default=1)
    if list(starts) == [i * longest for i in range(windows)] and stops[-1] == windows * longest:
        return fold(xs, Axis(dim, size, windows, longest, longest, 0, 1), fills, combine)
    if longest > _MANY_TAPS:
        folded = []
        for start, length in zip(starts, lengths, strict=True):
            axis = Axis(dim, length, 1, length, length, 0, 1)
            cell = tuple(hlo.slice_in_dim(x, start, start + length, dim=dim) for x in xs)
            folded.append(fold(cell, axis, fills, combine))
        return tuple(hlo.concatenate(parts, dim) for parts in zip(*folded, strict=True))
    taps_of = (_ragged_taps(x, dim, starts, lengths, f) for x, f in zip(xs, fills, strict=True))
    return reduce(combine, zip(*taps_of, strict=True))


def _ragged_taps(
    x: Value, dim: int, starts: Sequence[int], lengths: Sequence[int], fill: Value
) -> list[Value]:
    """As `taps`; a window that is too short has `fill` there."""
    result = []
    for tap in range(max(lengths, default=1)):
        there = [tap < length for length in lengths]
        value = take(x, dim, [min(start + tap, x.shape[dim] - 1) for start in starts])
        if not all(there):
            mask = hlo.broadcast_in_dim(hlo.array(torch.tensor(there)), value.shape, [dim])
            value = hlo.select(mask, value, hlo.broadcast(fill, value.shape))
        result.append(value)
    return result
