"""Pooling over windows of the last dimensions, and im2col, its relative."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import torch

from .. import hlo
from ..hlo import Value
from ..registry import Aval, decompose, lower
from .windows import (
    Axis,
    Sizes,
    Values,
    add,
    along,
    axes_of,
    covering,
    fold,
    fold_ragged,
    taps,
    untap,
)

aten = torch.ops.aten

# Up to so many windows over one element, the gradient of a maximum asks each of them whether it
# chose the element; beyond, it is scattered, which a TPU does one element at a time.
_MAX_COVER = 16


# Averages.


def _window_sizes(axis: Axis, include_pad: bool) -> list[int]:
    """How many elements each window averages; what hangs over the padding never counts."""
    low, high = (-axis.padding, axis.size + axis.padding) if include_pad else (0, axis.size)
    starts = (i * axis.stride - axis.padding for i in range(axis.windows))
    return [min(start + axis.window, high) - max(start, low) for start in starts]


def _divisor(like: Value, axes: Sequence[Axis], include_pad: bool, override: int | None) -> Value:
    if override is not None:
        return hlo.full_like(like, override)
    sizes = [along(_window_sizes(axis, include_pad), like, axis.dim) for axis in axes]
    return reduce(hlo.multiply, sizes)


def avg_pool(
    self: Value,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    aval: Aval,
    _rank: int = 2,
) -> Value:
    axes = axes_of(self.shape, aval.shape, kernel_size, stride, padding, rank=_rank)
    x = hlo.opmath(self)
    for axis in axes:
        (x,) = fold((x,), axis, (hlo.constant(0, x.dtype),), add)
    return hlo.divide(x, _divisor(x, axes, count_include_pad, divisor_override))


def avg_pool_backward(
    grad_output: Value,
    self: Value,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    _rank: int = 2,
) -> Value:
    axes = axes_of(self.shape, grad_output.shape, kernel_size, stride, padding, rank=_rank)
    grad = hlo.opmath(grad_output)
    grad = hlo.divide(grad, _divisor(grad, axes, count_include_pad, divisor_override))
    for axis in axes:
        grad = untap([grad] * axis.window, axis)
    return grad


def _cells(size: int, count: int) -> tuple[list[int], list[int]]:
    """Where `count` adaptive windows over `size` elements start and stop.

    With the arguments swapped, the windows that cover each element.
    """
    starts = [i * size // count for i in range(count)]
    return starts, [-(-(i + 1) * size // count) for i in range(count)]


def _lengths(size: int, count: int) -> list[int]:
    return [b - a for a, b in zip(*_cells(size, count), strict=True)]


def adaptive_avg_pool(self: Value, output_size: Sizes) -> Value:
    x = hlo.opmath(self)
    for dim, count in enumerate(output_size, x.ndim - len(output_size)):
        size = x.shape[dim]
        zero = hlo.constant(0, x.dtype)
        (x,) = fold_ragged((x,), dim, *_cells(size, count), (zero,), add)
        x = hlo.divide(x, along(_lengths(size, count), x, dim))
    return x


def adaptive_avg_pool_backward(grad_output: Value, self: Value, _rank: int = 2) -> Value:
    grad = hlo.opmath(grad_output)
    for dim in range(self.ndim - _rank, self.ndim):
        size, count = self.shape[dim], grad.shape[dim]
        grad = hlo.divide(grad, along(_lengths(size, count), grad, dim))
        zero = hlo.constant(0, grad.dtype)
        (grad,) = fold_ragged((grad,), dim, *_cells(count, size), (zero,), add)
    return grad


# Maxima. An index counts within a plane, the last dimensions flattened; -1 is the padding.


def _positions(shape: Sequence[int], rank: int) -> Value:
    plane = tuple(shape)[len(shape) - rank :]
    flat = hlo.iota((hlo.numel(plane),), 0, torch.int32)
    return hlo.broadcast(hlo.reshape(flat, plane), shape)


def _greater(best: Values, later: Values) -> Values:
    """torch's rule: a greater value wins, and so does any NaN; padding always loses."""
    (x, i), (y, j) = best, later
    none = hlo.zeros_like(i)
    wins = hlo.or_(hlo.or_(hlo.gt(y, x), hlo.is_nan(y)), hlo.lt(i, none))
    wins = hlo.and_(wins, hlo.ge(j, none))
    return hlo.select(wins, y, x), hlo.select(wins, j, i)


def _unset(dtype: torch.dtype) -> Values:
    return hlo.lowest(dtype), hlo.constant(-1, torch.int32)


def max_pool(
    self: Value,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    aval: Sequence[Aval],
    _rank: int = 2,
) -> Values:
    """The maximum of each window and its index; along the innermost dimension first."""
    axes = axes_of(self.shape, aval[0].shape, kernel_size, stride, padding, dilation, _rank)
    best: Values = self, _positions(self.shape, _rank)
    for axis in reversed(axes):
        best = fold(best, axis, _unset(self.dtype), _greater)
    return best


def max_pool_backward(
    grad_output: Value,
    self: Value,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    indices: Value,
    _rank: int = 2,
) -> Value:
    given = (kernel_size, stride, padding, dilation, _rank)
    axes = axes_of(self.shape, grad_output.shape, *given)
    if hlo.numel([axis.cover for axis in axes]) > _MAX_COVER:
        return route(grad_output, self, indices, _rank)
    candidates = [(hlo.opmath(grad_output), hlo.convert(indices, torch.int32))]
    for axis in axes:
        candidates = [pair for windows in candidates for pair in _covering_pairs(*windows, axis)]
    here = _positions(self.shape, _rank)
    zeros = hlo.zeros_like(candidates[0][0])
    return reduce(hlo.add, (hlo.select(hlo.eq(i, here), g, zeros) for g, i in candidates))


def _covering_pairs(grad: Value, index: Value, axis: Axis) -> list[tuple[Value, Value]]:
    grads = covering(grad, axis, hlo.constant(0, grad.dtype))
    return list(zip(grads, covering(index, axis, hlo.constant(-1, index.dtype)), strict=True))


def adaptive_max_pool(self: Value, output_size: Sizes) -> Values:
    rank = len(output_size)
    best: Values = self, _positions(self.shape, rank)
    for dim, count in reversed(list(enumerate(output_size, self.ndim - rank))):
        cells = _cells(self.shape[dim], count)
        best = fold_ragged(best, dim, *cells, _unset(self.dtype), _greater)
    return best


def route(grad_output: Value, self: Value, indices: Value, _rank: int = 2) -> Value:
    """Add each element of the gradient to the element of its plane that `indices` names."""
    plane = hlo.numel(self.shape[self.ndim - _rank :])
    batch = hlo.numel(self.shape[: self.ndim - _rank])
    grad = hlo.opmath(grad_output)
    grad = hlo.reshape(grad, (batch, hlo.numel(grad.shape[grad.ndim - _rank :])))
    result = hlo.scatter(
        hlo.constant(0, grad.dtype, (batch, plane)),
        hlo.reshape(hlo.convert(indices, torch.int32), (*grad.shape, 1)),
        grad,
        hlo.add,
        update_window_dims=(),
        inserted=(1,),
        scatter_dims_to_operand_dims=(1,),
        index_vector_dim=2,
        operand_batching=(0,),
        indices_batching=(0,),
    )
    return hlo.reshape(result, self.shape)


# Windows as columns.


def _unfold_axes(
    image: Sequence[int], kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> list[Axis]:
    bare = axes_of(image, image, kernel_size, stride, padding, dilation)
    return [a._replace(windows=(a.size + 2 * a.padding - a.extent) // a.stride + 1) for a in bare]


def im2col(
    self: Value, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes, aval: Aval
) -> Value:
    """[..., c, h, w] to [..., c * window, windows]."""
    rows, columns = _unfold_axes(self.shape, kernel_size, dilation, padding, stride)
    zero = hlo.constant(0, self.dtype)
    parts = [x for row in taps(self, rows, zero) for x in taps(row, columns, zero)]
    stacked = hlo.concatenate([hlo.expand_dims(x, [-3]) for x in parts], -3)
    return hlo.reshape(stacked, aval.shape)


def col2im(
    self: Value,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes,
    padding: Sizes,
    stride: Sizes,
    aval: Aval,
) -> Value:
    """The adjoint of im2col: columns that hold the same pixel are added."""
    rows, columns = _unfold_axes(aval.shape, kernel_size, dilation, padding, stride)
    window = rows.window * columns.window
    image = (*aval.shape[:-2], window, rows.windows, columns.windows)
    x = hlo.reshape(hlo.opmath(self), image)
    parts = iter(hlo.slice_in_dim(x, i, i + 1, dim=-3) for i in range(window))
    flat = (*image[:-3], *image[-2:])
    lines = [
        [hlo.reshape(next(parts), flat) for _ in range(columns.window)] for _ in range(rows.window)
    ]
    return untap([untap(line, columns) for line in lines], rows)


lower(aten.avg_pool2d, avg_pool)
lower(aten.avg_pool3d, partial(avg_pool, _rank=3))
lower(aten.avg_pool2d_backward, avg_pool_backward)
lower(aten.avg_pool3d_backward, partial(avg_pool_backward, _rank=3))

lower(aten.max_pool2d_with_indices, max_pool)
lower(aten.max_pool3d_with_indices, partial(max_pool, _rank=3))
lower(aten.max_pool2d_with_indices_backward, max_pool_backward)
lower(aten.max_pool3d_with_indices_backward, partial(max_pool_backward, _rank=3))

lower(aten._adaptive_avg_pool2d, adaptive_avg_pool)
lower(aten._adaptive_avg_pool3d, adaptive_avg_pool)
lower(aten._adaptive_avg_pool2d_backward, adaptive_avg_pool_backward)
lower(aten._adaptive_avg_pool3d_backward, partial(adaptive_avg_pool_backward, _rank=3))

lower(aten.adaptive_max_pool2d, adaptive_max_pool)
lower(aten.adaptive_max_pool3d, adaptive_max_pool)
lower(aten.adaptive_max_pool2d_backward, route)
lower(aten.adaptive_max_pool3d_backward, partial(route, _rank=3))

decompose(aten.max_unpool2d, aten.max_unpool3d)

lower(aten.im2col, im2col)
lower(aten.col2im, col2im)
