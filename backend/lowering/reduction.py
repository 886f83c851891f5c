"""Reductions. 16-bit floats are folded in float32; the result's shape and dtype are torch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from .. import hlo
from ..dtypes import real_of
from ..hlo import Value
from ..registry import Aval, lower

aten = torch.ops.aten
Dims = int | Sequence[int] | None
Fold = Callable[[Value, Sequence[int]], Value]


def dims_of(x: Value, dim: Dims) -> list[int]:
    """The dimensions torch means: none given is all of them, and a scalar has none."""
    if dim is None or dim == [] or x.ndim == 0:
        return list(range(x.ndim))
    return sorted({d % x.ndim for d in ([dim] if isinstance(dim, int) else dim)})


def spread(folded: Value, like: Value, dims: Sequence[int]) -> Value:
    """Undo a reduction over `dims`: repeat its result along them."""
    kept = [d for d in range(like.ndim) if d not in dims]
    return hlo.broadcast_in_dim(folded, like.shape, kept)


def _finish(value: Value, aval: Aval) -> Value:
    return hlo.reshape(hlo.convert(value, aval.dtype), aval.shape)


def reduction(fold: Fold, operand: Callable[[Value, Aval], Value] | None = None) -> Callable:
    """Lift fold(x, dims) to a lowering of every overload, with or without dim and keepdim."""

    def lowered(self: Value, *, aval: Aval, **options: object) -> Value:
        x = operand(self, aval) if operand else hlo.opmath(hlo.convert(self, aval.dtype))
        return _finish(fold(x, dims_of(self, options.get("dim"))), aval)  # type: ignore[arg-type]

    return lowered


def require_elements(name: str, x: Value, dim: int) -> None:
    """Refuse a row without elements, in torch's words, where the result is one of them."""
    if x.ndim and x.shape[dim] == 0:
        dim %= x.ndim
        raise IndexError(f"{name}(): Expected reduction dim {dim} to have non-zero size.")


def _size(x: Value, dims: Sequence[int]) -> int:
    return math.prod(x.shape[d] for d in dims)


def _mean(x: Value, dims: Sequence[int]) -> Value:
    total = hlo.reduce_sum(x, dims)
    return hlo.divide(total, hlo.full_like(total, _size(x, dims)))


def _nansum(x: Value, dims: Sequence[int]) -> Value:
    return hlo.reduce_sum(hlo.select(hlo.is_nan(x), hlo.zeros_like(x), x), dims)


def _as_bool(x: Value, aval: Aval) -> Value:
    return hlo.convert(x, torch.bool)


def _as_count(x: Value, aval: Aval) -> Value:
    return hlo.convert(hlo.convert(x, torch.bool), torch.int64)


_sum = reduction(hlo.reduce_sum)
_average = reduction(_mean)
_prod = reduction(hlo.reduce_prod)
_any = reduction(hlo.reduce_or, _as_bool)
_all = reduction(hlo.reduce_and, _as_bool)
_count = reduction(hlo.reduce_sum, _as_count)

lower(aten.sum.default, _sum)
lower(aten.sum.dim_IntList, _sum)
lower(aten.mean.default, _average)
lower(aten.mean.dim, _average)
lower(aten.prod.default, _prod)
lower(aten.prod.dim_int, _prod)
lower(aten.nansum, reduction(_nansum))
lower(aten.amax, reduction(hlo.reduce_max))
lower(aten.amin, reduction(hlo.reduce_min))
lower(aten.any.default, _any)
lower(aten.any.dim, _any)
lower(aten.all.default, _all)
lower(aten.all.dim, _all)
lower(aten.count_nonzero.default, _count)
lower(aten.count_nonzero.dim_IntList, _count)


def _logical_dims(fold: Fold) -> Callable:
    """any and all over a list: the one place where an empty list is no dimension at all."""

    def lowered(self: Value, dim: Sequence[int] | None, keepdim: bool, *, aval: Aval) -> Value:
        x = hlo.convert(self, torch.bool)
        return _finish(fold(x, [] if dim == [] else dims_of(x, dim)), aval)

    return lowered


lower(aten.any.dims, _logical_dims(hlo.reduce_or))
lower(aten.all.dims, _logical_dims(hlo.reduce_and))


# Extremes with their positions.


def extreme(x: Value, dim: int, better: Callable, worst: Callable) -> tuple[Value, Value]:
    """The best element along `dim` and its index: NaN is best of all, of equals the first."""
    if x.ndim == 0:
        return x, hlo.constant(0, torch.int64)
    x = hlo.opmath(x)
    floating = x.dtype.is_floating_point

    def pick(a: Value, i: Value, b: Value, j: Value) -> tuple[Value, Value]:
        wins, ties = better(a, b), hlo.eq(a, b)
        if floating:
            wins = hlo.or_(wins, hlo.and_(hlo.is_nan(a), hlo.not_(hlo.is_nan(b))))
            ties = hlo.or_(ties, hlo.and_(hlo.is_nan(a), hlo.is_nan(b)))
        first = hlo.or_(wins, hlo.and_(ties, hlo.lt(i, j)))
        return hlo.select(first, a, b), hlo.select(first, i, j)

    index = hlo.iota(x.shape, dim % x.ndim)
    inits = [worst(x.dtype), hlo.highest(torch.int64)]
    value, position = hlo.reduce([x, index], inits, [dim], pick)
    return value, position


def _extreme_dim(name: str, better: Callable, worst: Callable) -> Callable:
    def lowered(self: Value, dim: int, keepdim: bool, *, aval: Sequence[Aval]) -> list[Value]:
        require_elements(name, self, dim)
        return [_finish(x, a) for x, a in zip(extreme(self, dim, better, worst), aval, strict=True)]

    return lowered


def _extreme_index(better: Callable, worst: Callable) -> Callable:
    def lowered(self: Value, dim: int | None, keepdim: bool, *, aval: Aval) -> Value:
        x = hlo.reshape(self, (self.numel,)) if dim is None else self
        return _finish(extreme(x, dim or 0, better, worst)[1], aval)

    return lowered


lower(aten.max.dim, _extreme_dim("max", hlo.gt, hlo.lowest))
lower(aten.min.dim, _extreme_dim("min", hlo.lt, hlo.highest))
lower(aten.argmax, _extreme_index(hlo.gt, hlo.lowest))
lower(aten.argmin, _extreme_index(hlo.lt, hlo.highest))


@lower(aten.aminmax)
def _aminmax(self: Value, dim: int | None, keepdim: bool, *, aval: Sequence[Aval]) -> list[Value]:
    x, dims = hlo.opmath(self), dims_of(self, dim)
    return [_finish(hlo.reduce_min(x, dims), aval[0]), _finish(hlo.reduce_max(x, dims), aval[1])]


def _whole(name: str, fold: Fold) -> Callable:
    reduce_all = reduction(fold)

    def lowered(self: Value, *, aval: Aval) -> Value:
        if self.numel == 0:
            raise RuntimeError(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. "
                "Specify the reduction dim with the 'dim' argument."
            )
        return reduce_all(self, aval=aval)

    return lowered


lower(aten.max.default, _whole("max", hlo.reduce_max))
lower(aten.min.default, _whole("min", hlo.reduce_min))


# Moments: two passes, so that a large mean costs no digits.


def moments(x: Value, dims: Sequence[int], correction: float) -> tuple[Value, Value]:
    """(variance, mean) over dims, the variance divided by max(0, n - correction)."""
    mean = _mean(x, dims)
    deviation = hlo.subtract(x, spread(mean, x, dims))
    if x.dtype.is_complex:
        re, im = hlo.real(deviation), hlo.imag(deviation)
        squares = hlo.add(hlo.square(re), hlo.square(im))
    else:
        squares = hlo.square(deviation)
    total = hlo.reduce_sum(squares, dims)
    return hlo.divide(total, hlo.full_like(total, max(0, _size(x, dims) - correction))), mean


def _moment(*finish: Callable[[Value, Value], Value]) -> Callable:
    """A lowering of var, std, var_mean or std_mean: each result from (variance, mean)."""

    def lowered(
        self: Value, dim: Dims, correction: float | None, keepdim: bool, *, aval: Aval
    ) -> list[Value]:
        x = hlo.opmath(self)
        both = moments(x, dims_of(x, dim), 1 if correction is None else correction)
        avals = [aval] if isinstance(aval, Aval) else aval
        return [_finish(f(*both), a) for f, a in zip(finish, avals, strict=True)]

    return lowered


def _variance(variance: Value, mean: Value) -> Value:
    return variance


def _deviation(variance: Value, mean: Value) -> Value:
    return hlo.sqrt(variance)


def _expectation(variance: Value, mean: Value) -> Value:
    return mean


lower(aten.var.correction, _moment(_variance))
lower(aten.std.correction, _moment(_deviation))
lower(aten.var_mean.correction, _moment(_variance, _expectation))
lower(aten.std_mean.correction, _moment(_deviation, _expectation))


# Norms.


def _norm(x: Value, dims: Sequence[int], order: float) -> Value:
    """The vector norm of non-negative x."""
    if math.isinf(order):
        return (hlo.reduce_max if order > 0 else hlo.reduce_min)(x, dims)
    if order == 0:
        return hlo.reduce_sum(hlo.convert(hlo.convert(x, torch.bool), x.dtype), dims)
    if order == 1:
        return hlo.reduce_sum(x, dims)
    if order == 2:
        return hlo.sqrt(hlo.reduce_sum(hlo.square(x), dims))
    total = hlo.reduce_sum(hlo.power(x, hlo.full_like(x, order)), dims)
    return hlo.power(total, hlo.full_like(total, 1 / order))


def vector_norm(self: Value, order: float | None, dim: Dims, aval: Aval) -> Value:
    x = hlo.opmath(hlo.convert(hlo.abs_(self), real_of(aval.dtype)))
    return _finish(_norm(x, dims_of(x, dim), 2 if order is None else order), aval)


@lower(aten.linalg_vector_norm)
def _vector_norm(self: Value, ord: float, dim: Dims, keepdim: bool, *, aval: Aval) -> Value:
    return vector_norm(self, ord, dim, aval)


def _norm_lowering(self: Value, p: float | None, *, aval: Aval, **options: object) -> Value:
    return vector_norm(self, p, options.get("dim"), aval)  # type: ignore[arg-type]


lower(aten.norm.Scalar, _norm_lowering)
lower(aten.norm.ScalarOpt_dtype, _norm_lowering)
lower(aten.norm.ScalarOpt_dim, _norm_lowering)
lower(aten.norm.ScalarOpt_dim_dtype, _norm_lowering)


@lower(aten.logsumexp)
def _logsumexp(self: Value, dim: Dims, keepdim: bool, *, aval: Aval) -> Value:
    x, dims = hlo.opmath(hlo.convert(self, aval.dtype)), dims_of(self, dim)
    peak = hlo.reduce_max(hlo.real(x), dims)
    infinite = hlo.eq(hlo.abs_(peak), hlo.full_like(peak, math.inf))
    peak = hlo.convert(hlo.select(infinite, hlo.zeros_like(peak), peak), x.dtype)
    total = hlo.reduce_sum(hlo.exponential(hlo.subtract(x, spread(peak, x, dims))), dims)
    return _finish(hlo.add(hlo.log(total), peak), aval)


@lower(aten.trace)
def _trace(self: Value, *, aval: Aval) -> Value:
    x = hlo.opmath(hlo.convert(self, aval.dtype))
    diagonal = hlo.eq(hlo.iota(x.shape, 0), hlo.iota(x.shape, 1))
    return _finish(hlo.reduce_sum(hlo.select(diagonal, x, hlo.zeros_like(x)), [0, 1]), aval)
