"""Cumulative ops, each a window that ends at its element; XLA computes them in log depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from .. import hlo
from ..hlo import Value
from ..registry import Aval, lower

aten = torch.ops.aten


def scan(x: Value, dim: int, combine: Callable[[Value, Value], Value], init: Value) -> Value:
    """Inclusive scan along `dim` with an associative function and its identity.

    One operand only: XLA's CPU client aborts on windows of several operands over 1000 elements.
    """
    if x.numel == 0 or x.ndim == 0:
        return x
    dim %= x.ndim
    window, padding = [1] * x.ndim, [(0, 0)] * x.ndim
    window[dim], padding[dim] = x.shape[dim], (x.shape[dim] - 1, 0)
    return hlo.reduce_window([x], [init], combine, window, [1] * x.ndim, padding)[0]


def cumsum(x: Value, dim: int) -> Value:
    return scan(x, dim, hlo.add, hlo.constant(0, x.dtype))


def ranks(mask: Value) -> Value:
    """For every element of a 1-D mask, how many are True before it."""
    dtype = torch.int32 if mask.numel < 2**31 else torch.int64
    counts = cumsum(hlo.convert(mask, dtype), 0)
    return hlo.subtract(counts, hlo.convert(mask, dtype))


def _arithmetic(combine: Callable[[Value, Value], Value], identity: int) -> Callable:
    def lowered(self: Value, dim: int, *, aval: Aval) -> Value:
        x = hlo.opmath(hlo.convert(self, aval.dtype))
        return hlo.convert(scan(x, dim, combine, hlo.constant(identity, x.dtype)), aval.dtype)

    return lowered


lower(aten.cumsum, _arithmetic(hlo.add, 0))
lower(aten.cumprod, _arithmetic(hlo.multiply, 1))


def _extreme(combine: Callable, worst: Callable) -> Callable:
    """cummax and cummin: the index is that of the last element which set the running value."""

    def lowered(self: Value, dim: int, *, aval: Sequence[Aval]) -> tuple[Value, Value]:
        x = hlo.opmath(self)
        if x.ndim == 0:
            return self, hlo.constant(0, torch.int64)
        running = scan(x, dim, combine, worst(x.dtype))
        sets = hlo.or_(hlo.eq(x, running), hlo.is_nan(x))
        index = hlo.iota(x.shape, dim % x.ndim)
        index = hlo.select(sets, index, hlo.zeros_like(index))
        return running, scan(index, dim, hlo.maximum, hlo.constant(0, torch.int64))

    return lowered


lower(aten.cummax, _extreme(hlo.maximum, hlo.lowest))
lower(aten.cummin, _extreme(hlo.minimum, hlo.highest))


def logaddexp(x: Value, y: Value) -> Value:
    """log(exp(x) + exp(y)) without overflow; equal infinities stay what they are."""
    above = hlo.ge(hlo.real(x), hlo.real(y))
    high, low = hlo.select(above, x, y), hlo.select(above, y, x)
    total = hlo.add(high, hlo.log_plus_one(hlo.exponential(hlo.subtract(low, high))))
    infinite = hlo.and_(hlo.eq(x, y), hlo.not_(hlo.is_finite(hlo.real(x))))
    return hlo.select(infinite, x, total)


@lower(aten.logcumsumexp)
def _logcumsumexp(self: Value, dim: int, *, aval: Aval) -> Value:
    x = hlo.opmath(self)
    return hlo.convert(scan(x, dim, logaddexp, hlo.constant(-math.inf, x.dtype)), aval.dtype)


@lower(aten.flip)
def _flip(self: Value, dims: Sequence[int], *, aval: Aval) -> Value:
    return hlo.reverse(self, dims) if self.ndim else self
