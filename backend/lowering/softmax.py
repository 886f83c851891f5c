"""Softmax and its relatives. The row's maximum is subtracted first; 16-bit floats in float32."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch._prims_common import canonicalize_dim

from .. import hlo
from ..hlo import Value
from ..registry import Aval, compose, lower
from .reduction import spread

aten = torch.ops.aten


def _dims(x: Value, dim: int) -> list[int]:
    dim = canonicalize_dim(x.ndim, dim)
    return [dim] if x.ndim else []


def _shifted(x: Value, dims: list[int]) -> Value:
    return hlo.subtract(x, spread(hlo.reduce_max(x, dims), x, dims))


def softmax(x: Value, dims: list[int]) -> Value:
    weights = hlo.exponential(_shifted(x, dims))
    return hlo.divide(weights, spread(hlo.reduce_sum(weights, dims), x, dims))


def log_softmax(x: Value, dims: list[int]) -> Value:
    x = _shifted(x, dims)
    total = hlo.reduce_sum(hlo.exponential(x), dims)
    return hlo.subtract(x, spread(hlo.log(total), x, dims))


def _forward(function: Callable[[Value, list[int]], Value]) -> Callable:
    def lowered(self: Value, dim: int, half_to_float: bool, *, aval: Aval) -> Value:
        return hlo.convert(function(hlo.opmath(self), _dims(self, dim)), aval.dtype)

    return lowered


def _backward(function: Callable[[Value, Value, list[int]], Value]) -> Callable:
    def lowered(
        grad_output: Value, output: Value, dim: int, input_dtype: torch.dtype, *, aval: Aval
    ) -> Value:
        grad, out = hlo.opmath(grad_output), hlo.opmath(output)
        return hlo.convert(function(grad, out, _dims(grad, dim)), aval.dtype)

    return lowered


def _softmax_backward(grad: Value, out: Value, dims: list[int]) -> Value:
    inner = hlo.reduce_sum(hlo.multiply(grad, out), dims)
    return hlo.multiply(out, hlo.subtract(grad, spread(inner, grad, dims)))


def _log_softmax_backward(grad: Value, out: Value, dims: list[int]) -> Value:
    total = spread(hlo.reduce_sum(grad, dims), grad, dims)
    return hlo.subtract(grad, hlo.multiply(hlo.exponential(out), total))


lower(aten._softmax, _forward(softmax))
lower(aten._log_softmax, _forward(log_softmax))
lower(aten._softmax_backward_data, _backward(_softmax_backward))
lower(aten._log_softmax_backward_data, _backward(_log_softmax_backward))


@lower(aten._safe_softmax)
def _safe_softmax(self: Value, dim: int, *, aval: Aval) -> Value:
    """Rows that are -inf throughout become zeros instead of NaN."""
    x, dims = hlo.opmath(hlo.convert(self, aval.dtype)), _dims(self, dim)
    masked = hlo.reduce_and(hlo.eq(x, hlo.full_like(x, -math.inf)), dims)
    out = hlo.select(spread(masked, x, dims), hlo.zeros_like(x), softmax(x, dims))
    return hlo.convert(out, aval.dtype)


@compose(aten._masked_softmax)
def _masked_softmax(
    self: torch.Tensor, mask: torch.Tensor, dim: int | None = None, mask_type: int | None = None
) -> torch.Tensor:
    """Scores [b, h, l, l]; mask_type 0 is a mask [l, l], 1 is [b, l], 2 has the scores' shape."""
    if mask_type == 1 and mask.shape != self.shape:
        mask = mask.view(mask.shape[0], *(1,) * (self.ndim - 2), mask.shape[1])
    return torch.softmax(self.masked_fill(mask, -math.inf), -1 if dim is None else dim)


@compose(aten._masked_softmax_backward)
def _masked_softmax_backward(
    grad_output: torch.Tensor, output: torch.Tensor, mask: torch.Tensor, dim: int | None = None
) -> torch.Tensor:
    axis = -1 if dim is None else dim
    grad = aten._softmax_backward_data(grad_output, output, axis, output.dtype)
    return grad.masked_fill(mask.view_as(grad), 0)
