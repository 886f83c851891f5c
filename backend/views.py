"""Views: the geometry of a tensor on its storage, as StableHLO that reads or writes it.

A storage's value, the base, may have any shape and dtype: its row-major flattening is the
storage's memory. A view is (sizes, strides, offset) in elements of the view's own dtype.

The base is regarded as a box of factors, its own dimensions wherever the view allows, so that
every dimension of the view is a strided range in one factor. Reading is then a window of the box,
a strided slice and a transpose; only dimensions that overlap within a factor need a gather.
Each step can also be run backwards, which is how a view is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

from . import hlo
from .hlo import Shape, Value
from .reinterpret import reinterpret

FEW_WINDOWS = 8  # as many slices read less memory than a gather; more take long to compile


class Dim(NamedTuple):
    """A dimension of a view: `size` elements, `stride` apart."""

    size: int
    stride: int


class Step(NamedTuple):
    """A movement with its inverse: `put(whole, part)` is `whole` with `get(whole)` replaced."""

    get: Callable[[Value], Value]
    put: Callable[[Value, Value], Value]


@dataclass(frozen=True)
class Factor:
    """A dimension of the box that the base is regarded as, with the view's dimensions in it.

    The stride is that of the factor in memory; those of `dims` are in elements of the factor.
    """

    size: int
    stride: int
    dims: tuple[Dim, ...]

    @property
    def extent(self) -> int:
        return _extent(self.dims)

    @property
    def max_start(self) -> int:
        return self.size - self.extent


# The interface.


def read(
    base: Value,
    dtype: torch.dtype,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int | Value,
) -> Value:
    """The view's elements, in its shape. A dynamic offset must satisfy `offset_rule`."""
    sizes = tuple(sizes)
    _check_bounds(base.shape, base.dtype, dtype, sizes, strides, offset)
    if 0 in sizes:
        return hlo.constant(0, dtype, sizes)
    value = base
    for step in _steps(base.shape, base.dtype, dtype, sizes, strides, offset):
        value = step.get(value)
    if _unexpanded(sizes, strides) == sizes:
        return hlo.reshape(value, sizes)
    return hlo.broadcast_in_dim(value, sizes, _kept(sizes, strides))


def write(
    base: Value,
    value: Value,
    dtype: torch.dtype,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int | Value,
) -> Value:
    """The base after the view was overwritten with `value`, which has the view's shape and dtype.

    Elements that share memory must have equal values (the caller checks for overlap).
    """
    sizes = tuple(sizes)
    _check_bounds(base.shape, base.dtype, dtype, sizes, strides, offset)
    if 0 in sizes:
        return base if base.numel else hlo.constant(0, base.dtype, base.shape)
    if covers(base.shape, base.dtype, dtype, sizes, strides, offset):
        # Nothing of the old base survives, so the program must not ask for it.
        base = hlo.constant(0, base.dtype, base.shape)
    steps = _steps(base.shape, base.dtype, dtype, sizes, strides, offset)
    wholes = [base]
    for step in steps[:-1]:
        wholes.append(step.get(wholes[-1]))
    value = hlo.slice_(value, [0] * value.ndim, _unexpanded(sizes, strides))
    value = hlo.reshape(value, [sizes[i] for i in _kept(sizes, strides)])
    for whole, step in zip(reversed(wholes), reversed(steps), strict=True):
        value = step.put(whole, value)
    return value


def covers(
    base_shape: Shape,
    base_dtype: torch.dtype,
    dtype: torch.dtype,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int | Value,
) -> bool:
    """Whether writing the view replaces every element of the base."""
    count = math.prod(sizes)
    if count * dtype.itemsize != math.prod(base_shape) * base_dtype.itemsize:
        return False
    if count <= 1:
        return count == 0 or offset == 0
    return offset == 0 and _merged(_sorted(sizes, strides)) == [Dim(count, 1)]


def offset_rule(
    base_shape: Shape,
    base_dtype: torch.dtype,
    dtype: torch.dtype,
    sizes: Sequence[int],
    strides: Sequence[int],
) -> list[tuple[int, int, int]] | None:
    """Which offsets one program serves: (stride, size, max_start) per factor of the base.

    An offset may be an operand if each of its digits `offset // stride % size` is at most
    max_start. None if the offset must be a constant of the program.
    """
    if 0 in sizes or 0 in base_shape:
        return None
    ratio = max(1, dtype.itemsize // base_dtype.itemsize)
    shape, dims = _in_units(base_shape, base_dtype, dtype, sizes, strides)
    if sum((n - 1) * stride for n, stride in dims) >= math.prod(shape):
        return None
    factors = _factors(shape, _merged(dims), None)
    if all(factor.max_start == 0 for factor in factors):
        return None
    rule = []
    for factor in factors:
        if factor.stride % ratio == 0:
            rule.append((factor.stride // ratio, factor.size, factor.max_start))
        elif factor.max_start:
            return None
    return rule


# Geometry.


def _kept(sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The dimensions that move through memory."""
    return [i for i, n in enumerate(sizes) if n != 1 and strides[i] != 0]


def _unexpanded(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    return tuple(1 if stride == 0 else n for n, stride in zip(sizes, strides, strict=True))


def _sorted(sizes: Sequence[int], strides: Sequence[int]) -> list[Dim]:
    """The moving dimensions, outermost in memory first."""
    dims = [Dim(sizes[i], strides[i]) for i in _kept(sizes, strides)]
    return sorted(dims, key=lambda dim: -dim.stride)


def _merged(dims: Sequence[Dim]) -> list[Dim]:
    """Sorted dimensions with those joined that follow each other without a gap."""
    merged: list[Dim] = []
    for dim in dims:
        if merged and merged[-1].stride == dim.size * dim.stride:
            dim = Dim(merged.pop().size * dim.size, dim.stride)
        merged.append(dim)
    return merged


def _extent(dims: Sequence[Dim]) -> int:
    """How many elements lie between the first and the last one, both included."""
    return 1 + sum((size - 1) * stride for size, stride in dims)


def _in_units(
    base_shape: Shape,
    base_dtype: torch.dtype,
    dtype: torch.dtype,
    sizes: Sequence[int],
    strides: Sequence[int],
) -> tuple[Shape, list[Dim]]:
    """The base's shape and the view's sorted dimensions, in elements of the narrower dtype."""
    dims = _sorted(sizes, strides)
    if dtype.itemsize < base_dtype.itemsize:
        return (*base_shape, base_dtype.itemsize // dtype.itemsize), dims
    ratio = dtype.itemsize // base_dtype.itemsize
    if ratio == 1:
        return base_shape, dims
    dims = [Dim(size, stride * ratio) for size, stride in dims] + [Dim(ratio, 1)]
    if base_shape and base_shape[-1] % ratio == 0:
        return (*base_shape[:-1], base_shape[-1] // ratio, ratio), dims
    count = math.prod(base_shape)
    return (base_shape if count % ratio else (count // ratio, ratio)), dims


def _factors(shape: Shape, dims: Sequence[Dim], offset: int | None) -> list[Factor]:
    """Factor the base for a view; without an offset, for all that keep within the factors."""
    count = math.prod(shape)
    cuts = sorted({math.prod(shape[i:]) for i in range(1, len(shape) + 1)} - {count}, reverse=True)
    cuts = cuts or [1]
    while crossed := [c for c in cuts if _crosses(_split(dims, cuts), c, offset)]:
        cuts.remove(crossed[0])
    pieces = _split(dims, cuts)
    cuts = _refined(cuts, pieces, count, offset)
    factors = []
    for outer, stride in pairwise([count, *cuts]):
        inside = [Dim(n, s // stride) for n, s in pieces if stride <= s < outer]
        factors.append(Factor(outer // stride, stride, tuple(inside)))
    return factors


def _split(dims: Sequence[Dim], cuts: Sequence[int]) -> list[Dim]:
    """Split dimensions that run over whole factors, one piece per factor."""
    pieces = []
    for size, stride in dims:
        for cut in cuts:
            if stride < cut < size * stride and cut % stride == 0 == size * stride % cut:
                pieces.append(Dim(size * stride // cut, cut))
                size = cut // stride
        pieces.append(Dim(size, stride))
    return pieces


def _crosses(pieces: Sequence[Dim], cut: int, offset: int | None) -> bool:
    """Whether some dimension, or the inner ones together, step over a multiple of `cut`."""
    if any(stride > cut and stride % cut for _, stride in pieces):
        return cut != 1
    start = offset % cut if offset is not None else 0
    return start + _extent([dim for dim in pieces if dim.stride < cut]) > cut


def _refined(
    cuts: Sequence[int], pieces: Sequence[Dim], count: int, offset: int | None
) -> list[int]:
    """Cut a factor that holds several dimensions between them, where it divides evenly."""
    refined = list(cuts)
    for outer, stride in pairwise([count, *cuts]):
        inside = [dim.stride for dim in pieces if stride <= dim.stride < outer]
        for cut in inside[:-1]:
            if outer % cut == 0 and cut not in refined and not _crosses(pieces, cut, offset):
                refined.append(cut)
                outer = cut
    return sorted(refined, reverse=True)


# Steps.


def _steps(
    base_shape: Shape,
    base_dtype: torch.dtype,
    dtype: torch.dtype,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int | Value,
) -> list[Step]:
    """From the base to the moving dimensions of the view, in the view's order and dtype."""
    unit = base_dtype
    if dtype.itemsize < base_dtype.itemsize:
        unit = torch.uint8 if dtype is torch.bool else dtype
    shape, dims = _in_units(base_shape, base_dtype, dtype, sizes, strides)
    offset = _scaled(offset, max(1, dtype.itemsize // base_dtype.itemsize))
    factors = _factors(shape, _merged(dims), offset if isinstance(offset, int) else None)
    kept = _kept(sizes, strides)
    order = sorted(range(len(kept)), key=lambda i: -strides[kept[i]])
    inverse = [order.index(i) for i in range(len(order))]
    if len(dims) > len(kept):
        inverse.append(len(kept))
    steps = [
        *([_recast(unit)] if unit != base_dtype else []),
        _reshape([factor.size for factor in factors]),
        _window(_digits(offset, factors), [factor.extent for factor in factors]),
        *_inside([factor.dims for factor in factors]),
        _reshape([dim.size for dim in dims]),
        _transpose(inverse),
        *([_recast(dtype)] if unit != dtype else []),
    ]
    return steps


def _scaled(offset: int | Value, ratio: int) -> int | Value:
    if isinstance(offset, int) or ratio == 1:
        return offset * ratio if isinstance(offset, int) else offset
    return hlo.multiply(offset, hlo.full_like(offset, ratio))


def _digits(offset: int | Value, factors: Sequence[Factor]) -> list[int | Value]:
    """Where the view starts in each factor."""
    if isinstance(offset, int):
        return [offset // factor.stride % factor.size for factor in factors]
    digits: list[int | Value] = []
    for factor in factors:
        digit = hlo.divide(offset, hlo.full_like(offset, factor.stride))
        digit = hlo.remainder(digit, hlo.full_like(offset, factor.size))
        digits.append(digit if factor.max_start else 0)
    return digits


def _inside(groups: Sequence[Sequence[Dim]]) -> list[Step]:
    """From the window to one dimension per factor: strided slices, and gathers on overlap."""
    steps = []
    while any(_nested(dims) for dims in groups):
        padding, shape, inner = [], [], []
        for dims in groups:
            outer, rest = (dims[0], dims[1:]) if _nested(dims) else (None, dims)
            extent = _extent(dims)
            padding.append(outer.size * outer.stride - extent if outer else 0)
            shape += [outer.size, outer.stride] if outer else [extent]
            inner += [[Dim(outer.size, 1)], rest] if outer else [rest]
        groups = inner
        window = _window([0] * len(shape), [_extent(dims) for dims in groups])
        steps += [_pad(padding), _reshape(shape), window]
    steps.append(_every([dims[0].stride if len(dims) == 1 else 1 for dims in groups]))
    return steps + [_take(i, dims) for i, dims in enumerate(groups) if len(dims) > 1]


def _nested(dims: Sequence[Dim]) -> bool:
    """Whether the inner dimensions fit between two elements of the outer one."""
    return len(dims) > 1 and _extent(dims[1:]) <= dims[0].stride


def _recast(dtype: torch.dtype) -> Step:
    return Step(
        lambda whole: reinterpret(whole, dtype),
        lambda whole, part: reinterpret(part, whole.dtype),
    )


def _reshape(shape: Sequence[int]) -> Step:
    return Step(
        lambda whole: hlo.reshape(whole, shape),
        lambda whole, part: hlo.reshape(part, whole.shape),
    )


def _transpose(permutation: Sequence[int]) -> Step:
    inverse = [list(permutation).index(i) for i in range(len(permutation))]
    return Step(
        lambda whole: hlo.transpose(whole, permutation),
        lambda whole, part: hlo.transpose(part, inverse),
    )


def _window(starts: Sequence[int | Value], sizes: Sequence[int]) -> Step:
    """A box of neighbouring elements, at constant or computed starts."""
    fixed = [start for start in starts if isinstance(start, int)]

    def computed() -> list[Value]:
        return [hlo.constant(s, torch.int64) if isinstance(s, int) else s for s in starts]

    def get(whole: Value) -> Value:
        if len(fixed) < len(starts):
            return hlo.dynamic_slice(whole, computed(), sizes)
        return hlo.slice_(whole, fixed, [a + n for a, n in zip(fixed, sizes, strict=True)])

    def put(whole: Value, part: Value) -> Value:
        if part.shape == whole.shape:
            return part
        return hlo.dynamic_update_slice(whole, part, computed())

    return Step(get, put)


def _pad(high: Sequence[int]) -> Step:
    """Room at the end, so that the last block of a dimension is as long as the others."""
    low = [0] * len(high)
    return Step(
        lambda whole: hlo.pad_zero(whole, low, high),
        lambda whole, part: hlo.slice_(part, low, whole.shape),
    )


def _every(steps: Sequence[int]) -> Step:
    """Every n-th element, from the first to the last. Writing selects by position."""

    def get(whole: Value) -> Value:
        return hlo.slice_(whole, [0] * whole.ndim, whole.shape, steps)

    def put(whole: Value, part: Value) -> Value:
        if part.shape == whole.shape:
            return part
        mask = hlo.constant(True, torch.bool, whole.shape)
        for dim, step in enumerate(steps):
            if step > 1:
                position = hlo.iota(whole.shape, dim, torch.int32)
                rest = hlo.remainder(position, hlo.full_like(position, step))
                mask = hlo.and_(mask, hlo.eq(rest, hlo.zeros_like(rest)))
                part = _repeated(part, dim, step, whole.shape[dim])
        return hlo.select(mask, part, whole)

    return Step(get, put)


def _repeated(x: Value, dim: int, times: int, size: int) -> Value:
    """Each index of `dim` `times` over, cut to `size`.

    Padding between elements would do too, but the TPU compiler takes a minute to pad minor ones.
    """
    before, after = x.shape[: dim + 1], x.shape[dim + 1 :]
    dims = [i for i in range(x.ndim + 1) if i != dim + 1]
    x = hlo.broadcast_in_dim(x, (*before, times, *after), dims)
    x = hlo.reshape(x, (*before[:-1], before[-1] * times, *after))
    return hlo.slice_in_dim(x, 0, size, dim=dim)


def _windows(whole: Value, axis: int, dims: Sequence[Dim]) -> Value:
    """Two overlapping dimensions, one of them short, as a stack of strided slices."""
    short = 0 if dims[0].size < dims[1].size else 1
    (count, gap), (size, step) = dims[short], dims[1 - short]
    slices = []
    for start in range(0, count * gap, gap):
        part = hlo.slice_in_dim(whole, start, start + (size - 1) * step + 1, step, axis)
        slices.append(hlo.expand_dims(part, [axis + short]))
    stack = hlo.concatenate(slices, axis + short)
    return hlo.reshape(stack, (*whole.shape[:axis], count * size, *whole.shape[axis + 1 :]))


def _take(axis: int, dims: Sequence[Dim]) -> Step:
    """Elements of one factor picked by computed positions: dimensions that overlap."""

    def positions() -> Value:
        shape = [dim.size for dim in dims]
        total = hlo.constant(0, torch.int64, shape)
        for i, dim in enumerate(dims):
            index = hlo.iota(shape, i)
            total = hlo.add(total, hlo.multiply(index, hlo.full_like(index, dim.stride)))
        return hlo.reshape(total, (total.numel,))

    def get(whole: Value) -> Value:
        if len(dims) == 2 and min(dims).size <= FEW_WINDOWS:
            return _windows(whole, axis, dims)
        return hlo.gather(
            whole,
            positions(),
            offset_dims=[i for i in range(whole.ndim) if i != axis],
            collapsed=[axis],
            start_index_map=[axis],
            index_vector_dim=1,
            slice_sizes=[1 if i == axis else n for i, n in enumerate(whole.shape)],
        )

    def put(whole: Value, part: Value) -> Value:
        return hlo.scatter(
            whole,
            positions(),
            part,
            hlo.replace,
            update_window_dims=[i for i in range(whole.ndim) if i != axis],
            inserted=[axis],
            scatter_dims_to_operand_dims=[axis],
            index_vector_dim=1,
        )

    return Step(get, put)


def _check_bounds(
    base_shape: Shape,
    base_dtype: torch.dtype,
    dtype: torch.dtype,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int | Value,
) -> None:
    if not isinstance(offset, int) or 0 in sizes:
        return
    have = math.prod(base_shape) * base_dtype.itemsize
    need = (offset + _extent([Dim(*d) for d in zip(sizes, strides, strict=True)])) * dtype.itemsize
    if need > have:
        raise RuntimeError(
            f"setStorage: sizes {list(sizes)}, strides {list(strides)}, storage offset {offset}, "
            f"and itemsize {dtype.itemsize} requiring a storage size of {need} are out of bounds "
            f"for storage of size {have}"
        )
