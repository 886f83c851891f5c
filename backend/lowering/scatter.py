"""Writing by index tensors: scatter and its relatives.

An index that is out of bounds is dropped (see indexing.py). Of several writes to one place the
last in row-major order wins, as on torch's CPU; XLA promises that order on its CPU client only.
Sums of 16-bit floats are accumulated in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .. import hlo
from ..dtypes import is_integer
from ..hlo import Value
from ..promotion import scalar
from ..registry import Aval, compose, lower
from .indexing import Plan, check_mask, is_mask, plan, take_rows, wrap
from .scan import ranks

aten = torch.ops.aten
Body = Callable[[Value, Value], Value]


def put_rows(x: Value, index: Value, rows: Value, dim: int, body: Body) -> Value:
    """x with x[..., index[i], ...] = body(old, rows[..., i, ...]); index is 1-D."""
    if rows.numel == 0:
        return x
    return hlo.scatter(
        x,
        hlo.reshape(index, (index.numel, 1)),
        rows,
        body,
        update_window_dims=[d for d in range(x.ndim) if d != dim],
        inserted=[dim],
        scatter_dims_to_operand_dims=[dim],
        index_vector_dim=1,
    )


def put_along(x: Value, index: Value, updates: Value, dim: int, body: Body) -> Value:
    """x with x[.., index[.., i, ..], ..] = body(old, updates[.., i, ..]), as torch's scatter.

    index and updates may be smaller than x in the other dimensions, and updates than index.
    """
    if index.numel == 0:
        return x
    dim %= x.ndim
    others = [d for d in range(x.ndim) if d != dim]
    limits = [x.shape[d] if d == dim else index.shape[d] for d in range(x.ndim)]
    part = hlo.scatter(
        hlo.slice_(x, [0] * x.ndim, limits),
        hlo.reshape(index, (*index.shape, 1)),
        hlo.slice_(updates, [0] * x.ndim, index.shape),
        body,
        update_window_dims=[],
        inserted=[dim],
        scatter_dims_to_operand_dims=[dim],
        index_vector_dim=x.ndim,
        operand_batching=others,
        indices_batching=others,
    )
    return hlo.dynamic_update_slice(x, part, [hlo.constant(0, torch.int64)] * x.ndim)


def put_planned(x: Value, p: Plan, updates: Value, body: Body) -> Value:
    """x[indices] = body(old, updates), the indices as planned for advanced indexing."""
    return hlo.scatter(
        x,
        p.starts,
        updates,
        body,
        update_window_dims=p.window,
        inserted=p.dims,
        scatter_dims_to_operand_dims=p.dims,
        index_vector_dim=len(p.batch),
    )


# The reductions that torch names, each over a put: put(x, updates, body) -> new x.


class Reduction(NamedTuple):
    body: Body
    identity: Callable[[torch.dtype], Value]


_ADD = Reduction(hlo.add, lambda dtype: hlo.constant(0, dtype))
_MULTIPLY = Reduction(hlo.multiply, lambda dtype: hlo.constant(1, dtype))
REDUCTIONS = {
    "sum": _ADD,
    "add": _ADD,
    "mean": _ADD,
    "prod": _MULTIPLY,
    "multiply": _MULTIPLY,
    "amax": Reduction(hlo.maximum, hlo.lowest),
    "amin": Reduction(hlo.minimum, hlo.highest),
}


def reduce_into(
    x: Value, updates: Value, put: Callable[..., Value], reduce: str, include_self: bool = True
) -> Value:
    """Combine the updates with x, or among themselves where include_self is False."""
    dtype, (body, identity) = x.dtype, REDUCTIONS[reduce]
    x, updates = hlo.opmath(x), hlo.opmath(updates)
    ones = hlo.constant(1, torch.int64, updates.shape)
    if not include_self:
        hit = put(hlo.constant(False, torch.bool, x.shape), hlo.convert(ones, torch.bool), hlo.or_)
        x = hlo.select(hit, hlo.broadcast(identity(x.dtype), x.shape), x)
    result = put(x, updates, body)
    if reduce == "mean":
        start = hlo.constant(1 if include_self else 0, torch.int64, x.shape)
        count = hlo.maximum(put(start, ones, hlo.add), hlo.full_like(start, 1))
        result = _divide(result, hlo.convert(count, x.dtype))
    return hlo.convert(result, dtype)


def _divide(x: Value, y: Value) -> Value:
    """x / y for y > 0; integers round down."""
    quotient = hlo.divide(x, y)
    if not is_integer(x.dtype):
        return quotient
    inexact = hlo.ne(hlo.multiply(quotient, y), x)
    below = hlo.and_(inexact, hlo.lt(x, hlo.zeros_like(x)))
    return hlo.subtract(quotient, hlo.convert(below, x.dtype))


def _scatter(
    self: Value, dim: int, index: Value, source: Value, reduce: str | None, include_self: bool
) -> Value:
    """Every scatter of torch: a scalar operand counts as one element, a scalar source repeats."""
    x, index = (v if v.ndim else hlo.reshape(v, (1,)) for v in (self, index))
    source = hlo.convert(scalar(source), self.dtype)
    source = source if source.ndim else hlo.broadcast(source, index.shape)

    def put(x: Value, updates: Value, body: Body) -> Value:
        return put_along(x, index, updates, dim, body)

    if reduce is None:
        result = put(x, source, hlo.replace)
    else:
        result = reduce_into(x, source, put, reduce, include_self)
    return hlo.reshape(result, self.shape)


@lower(aten.scatter.src)
def _scatter_src(self: Value, dim: int, index: Value, src: Value, *, aval: Aval) -> Value:
    return _scatter(self, dim, index, src, None, True)


@lower(aten.scatter.value, dynamic="value")
def _scatter_value(self: Value, dim: int, index: Value, value: Value, *, aval: Aval) -> Value:
    return _scatter(self, dim, index, value, None, True)


@lower(aten.scatter.reduce)
def _scatter_src_reduce(
    self: Value, dim: int, index: Value, src: Value, reduce: str, *, aval: Aval
) -> Value:
    return _scatter(self, dim, index, src, reduce, True)


@lower(aten.scatter.value_reduce, dynamic="value")
def _scatter_value_reduce(
    self: Value, dim: int, index: Value, value: Value, reduce: str, *, aval: Aval
) -> Value:
    return _scatter(self, dim, index, value, reduce, True)


@lower(aten.scatter_add)
def _scatter_add(self: Value, dim: int, index: Value, src: Value, *, aval: Aval) -> Value:
    return _scatter(self, dim, index, src, "sum", True)


@lower(aten.scatter_reduce.two)
def _scatter_reduce(
    self: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str,
    include_self: bool,
    *,
    aval: Aval,
) -> Value:
    return _scatter(self, dim, index, src, reduce, include_self)


# Whole rows.


def _rows(
    self: Value, dim: int, index: Value, source: Value, reduce: str | None, include_self: bool
) -> Value:
    """index_copy, index_add and index_reduce: rows of source go to rows of self."""
    if self.ndim == 0:
        self_, dim = hlo.reshape(self, (1,)), 0
    else:
        self_, dim = self, dim % self.ndim
    index = hlo.reshape(index, (index.numel,))
    shape = [index.numel if d == dim else n for d, n in enumerate(self_.shape)]
    source = hlo.reshape(hlo.convert(source, self.dtype), shape)

    def put(x: Value, updates: Value, body: Body) -> Value:
        return put_rows(x, index, updates, dim, body)

    if reduce is None:
        result = put(self_, source, hlo.replace)
    else:
        result = reduce_into(self_, source, put, reduce, include_self)
    return hlo.reshape(result, self.shape)


@lower(aten.index_copy)
def _index_copy(self: Value, dim: int, index: Value, source: Value, *, aval: Aval) -> Value:
    return _rows(self, dim, index, source, None, True)


@lower(aten.index_add, dynamic="alpha")
def _index_add(
    self: Value, dim: int, index: Value, source: Value, alpha: Value, *, aval: Aval
) -> Value:
    wide = hlo.opmath(hlo.convert(source, self.dtype))
    factor = hlo.broadcast(hlo.convert(scalar(alpha), wide.dtype), wide.shape)
    return _rows(self, dim, index, hlo.multiply(wide, factor), "sum", True)


@lower(aten.index_reduce)
def _index_reduce(
    self: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    include_self: bool,
    *,
    aval: Aval,
) -> Value:
    return _rows(self, dim, index, source, reduce, include_self)


def _index_fill(self: Value, dim: int, index: Value, value: Value, *, aval: Aval) -> Value:
    value = hlo.broadcast(hlo.convert(scalar(value), self.dtype), self.shape)
    if self.ndim == 0:
        return value if index.numel else self
    dim %= self.ndim
    size = self.shape[dim]
    index = wrap(hlo.reshape(index, (index.numel,)), size)
    yes = hlo.constant(True, torch.bool, index.shape)
    hit = put_rows(hlo.constant(False, torch.bool, (size,)), index, yes, 0, hlo.or_)
    return hlo.select(hlo.broadcast_in_dim(hit, self.shape, [dim]), value, self)


lower(aten.index_fill.int_Scalar, _index_fill, dynamic="value")
lower(aten.index_fill.int_Tensor, _index_fill)


@lower(aten.put)
def _put(self: Value, index: Value, source: Value, accumulate: bool, *, aval: Aval) -> Value:
    flat = hlo.reshape(self, (self.numel,))
    index = wrap(hlo.reshape(index, (index.numel,)), self.numel)
    put = partial(_put_rows_first, index=index)
    source = hlo.reshape(source, index.shape)
    new = reduce_into(flat, source, put, "sum") if accumulate else put(flat, source, hlo.replace)
    return hlo.reshape(new, self.shape)


def _put_rows_first(x: Value, updates: Value, body: Body, *, index: Value) -> Value:
    return put_rows(x, index, updates, 0, body)


@lower(aten.embedding_dense_backward)
def _embedding_dense_backward(
    grad_output: Value,
    indices: Value,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
    *,
    aval: Aval,
) -> Value:
    index = hlo.reshape(indices, (indices.numel,))
    grad = hlo.reshape(hlo.opmath(grad_output), (index.numel, grad_output.shape[-1]))
    if scale_grad_by_freq and index.numel:
        ones = hlo.constant(1, grad.dtype, index.shape)
        counts = put_rows(hlo.constant(0, grad.dtype, (num_weights,)), index, ones, 0, hlo.add)
        share = take_rows(counts, index)
        grad = hlo.divide(grad, hlo.broadcast_in_dim(share, grad.shape, [0]))
    if padding_idx >= 0:
        padding = hlo.eq(index, hlo.full_like(index, padding_idx))
        index = hlo.select(padding, hlo.full_like(index, num_weights), index)
    weight = hlo.constant(0, grad.dtype, aval.shape)
    return hlo.convert(put_rows(weight, index, grad, 0, hlo.add), aval.dtype)


@compose(aten.embedding_renorm_)
def _embedding_renorm_(self: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Scale the rows that indices name down to max_norm, in place."""
    index = indices.reshape(-1)
    rows = self.index_select(0, index)
    norms = torch.linalg.vector_norm(rows, norm_type, 1, keepdim=True)
    scale = torch.where(norms > max_norm, max_norm / (norms + 1e-7), 1.0)
    return self.index_copy_(0, index, rows * scale)


# x[indices] = values.


def _index_put(
    self: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool,
    *,
    aval: Aval,
    **unsafe: bool,
) -> Value:
    if values.dtype != self.dtype and not values.weak:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{self.dtype} for the destination and {values.dtype} for the source."
        )
    values = hlo.convert(values, self.dtype)
    given = [(d, index) for d, index in enumerate(indices) if index is not None]
    if not given:
        values = hlo.broadcast(values, self.shape)
        return _added(self, values) if accumulate else values
    if len(given) == 1 and is_mask(given[0][1]):
        return _mask_put(self, given[0][1], given[0][0], values, accumulate)
    p = plan(self.shape, indices)
    values = _fitted(values, p.result)
    if 0 in p.result:
        return self
    put = partial(_put_planned_first, p=p)
    return reduce_into(self, values, put, "sum") if accumulate else put(self, values, hlo.replace)


def _fitted(values: Value, result: Sequence[int]) -> Value:
    """values broadcast to what the indices select."""
    pairs = zip(reversed(values.shape), reversed(result), strict=False)
    if values.ndim > len(result) or any(n not in (1, m) for n, m in pairs):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
            f"indexing result of shape {list(result)}"
        )
    return hlo.broadcast(values, result)


def _put_planned_first(x: Value, updates: Value, body: Body, *, p: Plan) -> Value:
    return put_planned(x, p, updates, body)


def _added(x: Value, y: Value) -> Value:
    return hlo.convert(hlo.add(hlo.opmath(x), hlo.opmath(y)), x.dtype)


def _mask_put(self: Value, mask: Value, at: int, values: Value, accumulate: bool) -> Value:
    """x[mask] = values without reading to the host how many elements the mask selects.

    The k-th selected row takes the k-th row of values. That there are as many of the one as of
    the other is checked in debug mode only.
    """
    check_mask(self.shape, mask.shape, at)
    before, covered = self.shape[:at], mask.ndim
    after = self.shape[at + covered :]
    mask = hlo.convert(mask, torch.bool)
    axis = values.ndim - 1 - len(after)  # the dimension of values that the mask's rows take
    if axis < 0:
        rows = _fitted(values, self.shape)
    elif values.shape[axis] == 1:
        ones = (1,) * covered
        shape = (*values.shape[:axis], *ones, *values.shape[axis + 1 :])
        rows = _fitted(hlo.reshape(values, shape), self.shape)
    else:
        values = _fitted(values, (*before, values.shape[axis], *after))
        rows = hlo.reshape(_spread_rows(values, mask, at), self.shape)
    selected = hlo.broadcast_in_dim(mask, self.shape, range(at, at + covered))
    return hlo.select(selected, _added(self, rows) if accumulate else rows, self)


def _spread_rows(rows: Value, mask: Value, dim: int) -> Value:
    """Along dim, the k-th row where the flattened mask is True for the k-th time."""
    if rows.shape[dim] == 0:
        shape = [mask.numel if d == dim else n for d, n in enumerate(rows.shape)]
        return hlo.constant(0, rows.dtype, shape)
    return take_rows(rows, ranks(hlo.reshape(mask, (mask.numel,))), dim)


lower(aten.index_put.default, _index_put)
lower(aten._index_put_impl.default, _index_put)
lower(aten._unsafe_index_put.default, _index_put)


# Masks.


@lower(aten.masked_scatter)
def _masked_scatter(self: Value, mask: Value, source: Value, *, aval: Aval) -> Value:
    if mask.dtype is not torch.bool:
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )
    x = hlo.broadcast(self, aval.shape)
    selected = hlo.broadcast(mask, aval.shape)
    source = hlo.reshape(hlo.convert(source, self.dtype), (source.numel,))
    return hlo.select(selected, hlo.reshape(_spread_rows(source, selected, 0), x.shape), x)


@lower(aten.masked_scatter_backward)
def _masked_scatter_backward(
    grad_output: Value, mask: Value, sizes: Sequence[int], *, aval: Aval
) -> Value:
    """The selected gradients, moved to the front of a tensor of the source's size."""
    mask = hlo.convert(hlo.broadcast(mask, grad_output.shape), torch.bool)
    selected = hlo.reshape(mask, (mask.numel,))
    size = math.prod(sizes)
    place = ranks(selected)
    place = hlo.select(selected, place, hlo.full_like(place, size))
    zeros = hlo.constant(0, grad_output.dtype, (size,))
    flat = hlo.reshape(grad_output, (grad_output.numel,))
    return hlo.reshape(put_rows(zeros, place, flat, 0, hlo.replace), aval.shape)


# Histograms.


@lower(aten.histc)
def _histc(self: Value, bins: int, min: float, max: float, *, aval: Aval) -> Value:
    """Counts of equal bins over [min, max], or over the data's range where both are equal."""
    x = hlo.opmath(hlo.reshape(self, (self.numel,)))
    counts = hlo.constant(0, x.dtype, (bins,))
    if x.numel == 0:
        return hlo.convert(counts, aval.dtype)
    low, high = (hlo.constant(v, x.dtype) for v in (min, max))
    if min == max:
        low, high = hlo.reduce_min(x, [0]), hlo.reduce_max(x, [0])
    one = hlo.full_like(low, 1)
    flat = hlo.eq(low, high)
    low, high = (hlo.select(flat, f(v, one), v) for f, v in ((hlo.subtract, low), (hlo.add, high)))
    low, high = hlo.broadcast(low, x.shape), hlo.broadcast(high, x.shape)
    position = hlo.divide(hlo.subtract(x, low), hlo.subtract(high, low))
    place = hlo.convert(hlo.multiply(position, hlo.full_like(x, bins)), torch.int64)
    place = hlo.minimum(place, hlo.full_like(place, bins - 1))
    inside = hlo.and_(hlo.ge(x, low), hlo.le(x, high))
    place = hlo.select(inside, place, hlo.full_like(place, bins))
    counts = put_rows(counts, place, hlo.full_like(x, 1), 0, hlo.add)
    return hlo.convert(counts, aval.dtype)
