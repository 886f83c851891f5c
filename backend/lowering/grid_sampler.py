"""grid_sampler and its gradients, in 2 and 3 dimensions.

A grid point takes a few elements along each dimension (1 nearest, 2 linear, 4 cubic), each with a
weight and the weight's slope; together, the products over the dimensions. Elements outside of the
input weigh nothing. Written in torch operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from ..dtypes import OPMATH
from ..registry import decompose

aten = torch.ops.aten

_LINEAR, _NEAREST, _CUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)


class Axis(NamedTuple):
    """What the points take along one dimension, each [n, taps, points]; slope has one tap."""

    element: Tensor
    weight: Tensor
    derivative: Tensor
    slope: Tensor  # of the position by the grid's coordinate


def _clip(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Into [0, size - 1]; the slope is zero at the border too, as torch has it."""
    inside = (x > 0) & (x < size - 1)
    return x.clamp(0, size - 1), inside.to(x.dtype)


def _reflect(x: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Mirrored at low and high until it lies between them."""
    span = high - low
    if span == 0:
        return torch.zeros_like(x), torch.zeros_like(x)
    distance = (x - low).abs()
    rest, odd = torch.fmod(distance, span), torch.floor(distance / span) % 2 != 0
    direction = torch.where((x < low) != odd, -1.0, 1.0).to(x.dtype)
    return torch.where(odd, span - rest, rest) + low, direction


def _padded(x: Tensor, size: int, mode: int, align_corners: bool) -> tuple[Tensor, Tensor]:
    """Where a position outside of the input is taken from, and the slope of that map."""
    if mode == _ZEROS:
        return x, torch.ones_like(x)
    if mode == _BORDER:
        return _clip(x, size)
    low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
    x, direction = _reflect(x, low, high)
    x, inside = _clip(x, size)
    return x, direction * inside


def _cubic(distance: Tensor) -> tuple[Tensor, Tensor]:
    """Keys' kernel with a = -3/4, and its slope."""
    a, x = -0.75, distance.abs()
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    near_slope = (3 * (a + 2) * x - 2 * (a + 3)) * x
    far_slope = (3 * a * x - 10 * a) * x + 8 * a
    slope = torch.where(x <= 1, near_slope, far_slope) * distance.sign()
    return torch.where(x <= 1, near, far), slope


def _axis(grid: Tensor, size: int, mode: int, padding: int, align_corners: bool) -> Axis:
    """Taps along a dimension of `size` elements for coordinates [n, points] in [-1, 1]."""
    scale = (size - 1) / 2 if align_corners else size / 2
    position = ((grid + 1) * scale - (0 if align_corners else 0.5)).unsqueeze(1)
    slope = torch.full_like(position, scale)
    if mode != _CUBIC:
        position, bend = _padded(position, size, padding, align_corners)
        slope = slope * bend
    if mode == _NEAREST:
        index = position.round()
        weight, derivative = torch.ones_like(index), torch.zeros_like(index)
    elif mode == _LINEAR:
        first = position.floor()
        index, part = torch.cat([first, first + 1], 1), position - first
        weight = torch.cat([1 - part, part], 1)
        derivative = torch.cat([-torch.ones_like(part), torch.ones_like(part)], 1)
    else:
        first = position.floor()
        index = torch.cat([first + i for i in range(-1, 3)], 1)
        weight, derivative = _cubic(position - index)
        index, _ = _padded(index, size, padding, align_corners)
    inside = (index >= 0) & (index <= size - 1)
    weight, derivative = (torch.where(inside, v, 0.0) for v in (weight, derivative))
    return Axis(index.clamp(0, size - 1).to(torch.int64), weight, derivative, slope)


def _outer(factors: Sequence[Tensor]) -> Tensor:
    """Products over the taps of all dimensions, the first dimension slowest: [n, taps, points]."""
    return reduce(lambda a, b: (a.unsqueeze(2) * b.unsqueeze(1)).flatten(1, 2), factors)


def _axes(input: Tensor, grid: Tensor, *modes: int | bool) -> tuple[list[Axis], tuple]:
    """The axes, and the subscripts [n, taps * points] of what they take of [n, elements, c]."""
    sizes = input.shape[2:]
    points = grid.flatten(1, -2).to(OPMATH.get(grid.dtype, grid.dtype))
    axes = [
        _axis(points[..., len(sizes) - 1 - i], size, *modes)  # type: ignore[arg-type]
        for i, size in enumerate(sizes)
    ]
    index = axes[0].element
    for axis, size in zip(axes[1:], sizes[1:], strict=True):
        index = (index.unsqueeze(2) * size + axis.element.unsqueeze(1)).flatten(1, 2)
    batch = torch.arange(input.shape[0], device=input.device).unsqueeze(1)
    return axes, (batch, index.flatten(1))


def _channels_last(x: Tensor) -> Tensor:
    """[n, c, ...] to [n, elements, c], in the dtype to compute in."""
    return x.flatten(2).transpose(1, 2).to(OPMATH.get(x.dtype, x.dtype))


def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    axes, where = _axes(input, grid, interpolation_mode, padding_mode, align_corners)
    weight = _outer([axis.weight for axis in axes]).unsqueeze(-1)
    taken = _channels_last(input)[where].unflatten(1, weight.shape[1:3])
    result = (taken * weight).sum(1).transpose(1, 2)
    return result.unflatten(2, grid.shape[1:-1]).to(input.dtype)


def grid_sampler_backward(
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor]:
    """Gradients of input, if asked for, and grid."""
    axes, where = _axes(input, grid, interpolation_mode, padding_mode, align_corners)
    grad, x = _channels_last(grad_output).unsqueeze(1), _channels_last(input)
    weights = [axis.weight for axis in axes]
    grad_input = None
    if output_mask[0]:
        parts = (_outer(weights).unsqueeze(-1) * grad).flatten(1, 2)
        grad_input = torch.zeros_like(x).index_put(where, parts, accumulate=True)
        grad_input = grad_input.transpose(1, 2).reshape(input.shape).to(input.dtype)
    product = (x[where].unflatten(1, (-1, grad.shape[2])) * grad).sum(-1)
    slopes = []
    for i, axis in enumerate(axes):
        factors = [*weights[:i], axis.derivative, *weights[i + 1 :]]
        slopes.append((product * _outer(factors)).sum(1) * axis.slope.squeeze(1))
    grad_grid = torch.stack(slopes[::-1], -1).reshape(grid.shape)
    return grad_input, grad_grid.to(grid.dtype)


decompose(aten.grid_sampler_2d, aten.grid_sampler_3d, using=grid_sampler)
decompose(aten.grid_sampler_2d_backward, aten.grid_sampler_3d_backward, using=grid_sampler_backward)
