"""Sorting and order statistics. Sorts are stable and NaN is greater than every number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch._prims_common import canonicalize_dim

from .. import hlo
from ..hlo import Value
from ..promotion import common_dtypes, scalar
from ..registry import Aval, lower
from .indexing import take_along
from .reduction import extreme, require_elements
from .scan import scan

aten = torch.ops.aten


def _before(descending: bool) -> Callable[..., Value]:
    """The comparator of (value, index) pairs; indices ride along."""

    def less(x: Value, y: Value, *riders: Value) -> Value:
        high, low = (x, y) if descending else (y, x)
        before = hlo.gt(high, low)
        if not x.dtype.is_floating_point:
            return before
        return hlo.or_(before, hlo.and_(hlo.is_nan(high), hlo.not_(hlo.is_nan(low))))

    return less


def _key(x: Value) -> Value | None:
    """32 bits that order as torch does, as i64; None for what does not fit."""
    if x.dtype in (torch.float64, torch.int64, torch.uint32, torch.uint64):
        return None
    if not x.dtype.is_floating_point:
        return hlo.convert(x, torch.int64)
    x = hlo.convert(x, torch.float32)
    x = hlo.select(hlo.eq(x, hlo.zeros_like(x)), hlo.zeros_like(x), x)  # -0 equals 0
    x = hlo.select(hlo.is_nan(x), hlo.full_like(x, math.nan), x)
    bits = hlo.bitcast_convert(x, torch.int32)
    magnitude = hlo.xor(bits, hlo.full_like(bits, 2**31 - 1))
    return hlo.convert(hlo.select(hlo.lt(bits, hlo.zeros_like(bits)), magnitude, bits), torch.int64)


def sort_pairs(x: Value, dim: int, descending: bool = False) -> tuple[Value, Value]:
    """x sorted along `dim`, and where each element came from (i64)."""
    dim = canonicalize_dim(x.ndim, dim)
    if x.ndim == 0:
        return x, hlo.constant(0, torch.int64)
    index, key = hlo.iota(x.shape, dim), _key(x)
    if key is None or x.shape[dim] >= 2**32:
        values, order = hlo.sort([x, index], dim, _before(descending))
        return values, order
    # One operand, key and index in one word: XLA's CPU client sorts that ten times as fast.
    key = hlo.not_(key) if descending else key
    word = hlo.or_(hlo.shift_left(key, hlo.full_like(key, 32)), index)
    ordered = hlo.sort([word], dim, hlo.lt, stable=False)[0]
    order = hlo.and_(ordered, hlo.full_like(ordered, 2**32 - 1))
    return take_along(x, order, dim), order


@lower(aten.sort.default)
def _sort(self: Value, dim: int, descending: bool, *, aval: Sequence[Aval]) -> tuple[Value, Value]:
    return sort_pairs(self, dim, descending)


@lower(aten.sort.stable)
def _sort_stable(
    self: Value, stable: bool | None, dim: int, descending: bool, *, aval: Sequence[Aval]
) -> tuple[Value, Value]:
    return sort_pairs(self, dim, descending)


_EXACT_IN_F32 = frozenset(
    {torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.uint8, torch.int8, torch.int16}
)


def _top(x: Value, k: int, largest: bool) -> Value:
    """Indices of the k first elements along the last dimension, of equals the first ones."""
    if x.dtype not in _EXACT_IN_F32:
        return hlo.slice_in_dim(sort_pairs(x, -1, descending=largest)[1], 0, k, dim=-1)
    key = hlo.convert(x, torch.float32)
    key = key if largest else hlo.negate(key)
    # top_k goes by total order: NaN above everything, or, with its sign set, below.
    nan = hlo.full_like(key, math.nan if largest else -math.nan)
    return hlo.convert(hlo.top_k(hlo.select(hlo.is_nan(key), nan, key), k)[1], torch.int64)


@lower(aten.topk)
def _topk(
    self: Value, k: int, dim: int, largest: bool, sorted: bool, *, aval: Sequence[Aval]
) -> list[Value]:
    """The result is always sorted."""
    if self.ndim == 0 or k == 0:
        index = hlo.constant(0, torch.int64, aval[1].shape)
        return [
            hlo.broadcast(self, aval[0].shape) if k else hlo.constant(0, self.dtype, aval[0].shape),
            index,
        ]
    order = [d for d in range(self.ndim) if d != dim % self.ndim] + [dim % self.ndim]
    back = [order.index(d) for d in range(self.ndim)]
    x = hlo.transpose(self, order)
    index = _top(x, k, largest)
    return [hlo.transpose(v, back) for v in (take_along(x, index, -1), index)]


# Order statistics: one element of each sorted row.


def _statistic(name: str, position: Callable[[Value, int], Value]) -> Callable:
    """A lowering of median and nanmedian over a dimension, or over everything.

    position(ordered, dim) is where the statistic stands in the sorted row, dim kept with size 1.
    """

    def over(x: Value, dim: int, avals: Sequence[Aval]) -> list[Value]:
        if x.ndim == 0:
            return [x, hlo.constant(0, torch.int64)]
        require_elements(name, x, dim)
        dim %= x.ndim
        pair = sort_pairs(x, dim)
        where = position(pair[0], dim)
        return [
            hlo.reshape(take_along(v, where, dim), a.shape)
            for v, a in zip(pair, avals, strict=False)
        ]

    def lowered(self: Value, *, aval: Aval | Sequence[Aval], **options: object) -> object:
        if "dim" in options:
            return over(self, options["dim"], aval)  # type: ignore[arg-type]
        if self.numel == 0:
            undefined = math.nan if self.dtype.is_floating_point else torch.iinfo(self.dtype).min
            return hlo.constant(undefined, self.dtype)
        return over(hlo.reshape(self, (self.numel,)), 0, [aval])[0]  # type: ignore[list-item]

    return lowered


def _numbers(ordered: Value, dim: int) -> Value:
    """How many elements of each row are not NaN, dim kept with size 1."""
    shape = [1 if d == dim else n for d, n in enumerate(ordered.shape)]
    if not ordered.dtype.is_floating_point:
        return hlo.constant(ordered.shape[dim], torch.int64, shape)
    numbers = hlo.convert(hlo.eq(ordered, ordered), torch.int64)
    return hlo.reshape(hlo.reduce_sum(numbers, [dim]), shape)


def _median_position(ordered: Value, dim: int) -> Value:
    numbers, size = _numbers(ordered, dim), ordered.shape[dim]
    whole = hlo.eq(numbers, hlo.full_like(numbers, size))
    return hlo.select(whole, hlo.full_like(numbers, (size - 1) // 2), numbers)


def _nanmedian_position(ordered: Value, dim: int) -> Value:
    numbers = _numbers(ordered, dim)
    before = hlo.subtract(numbers, hlo.full_like(numbers, 1))
    return hlo.divide(hlo.maximum(before, hlo.zeros_like(before)), hlo.full_like(before, 2))


lower(aten.median.default, _statistic("median", _median_position))
lower(aten.median.dim, _statistic("median", _median_position))
lower(aten.nanmedian.default, _statistic("nanmedian", _nanmedian_position))
lower(aten.nanmedian.dim, _statistic("nanmedian", _nanmedian_position))


@lower(aten.kthvalue)
def _kthvalue(self: Value, k: int, dim: int, keepdim: bool, *, aval: Sequence[Aval]) -> list[Value]:
    require_elements("kthvalue", self, dim)
    pair = sort_pairs(self, dim)
    return [
        hlo.reshape(hlo.slice_in_dim(x, k - 1, k, dim=dim) if x.ndim else x, a.shape)
        for x, a in zip(pair, aval, strict=True)
    ]


@lower(aten.mode)
def _mode(self: Value, dim: int, keepdim: bool, *, aval: Sequence[Aval]) -> list[Value]:
    """The least of the most frequent values, and the last position that holds it."""
    if self.ndim == 0:
        return [self, hlo.constant(0, torch.int64)]
    require_elements("mode", self, dim)
    dim %= self.ndim
    values, order = sort_pairs(self, dim)
    size = self.shape[dim]
    place = hlo.iota(self.shape, dim)
    earlier = hlo.concatenate(
        [hlo.slice_in_dim(values, 0, 1, dim=dim), hlo.slice_in_dim(values, 0, size - 1, dim=dim)],
        dim,
    )
    start = hlo.select(hlo.ne(values, earlier), place, hlo.zeros_like(place))
    start = scan(start, dim, hlo.maximum, hlo.constant(0, torch.int64))
    end = extreme(hlo.subtract(place, start), dim, hlo.gt, hlo.lowest)[1]
    end = hlo.expand_dims(end, [dim])
    return [
        hlo.reshape(take_along(x, end, dim), a.shape)
        for x, a in zip((values, order), aval, strict=True)
    ]


# Binary search.


def searchsorted(edges: Value, x: Value, right: bool, sorter: Value | None = None) -> Value:
    """Where to insert x[..., m] in the sorted edges[..., n] (leading sizes equal): i64[..., m].

    NaN sorts last, as in torch: comparisons that fail go right.
    """
    size = edges.shape[-1]
    goes_left = hlo.gt if right else hlo.ge
    one = hlo.constant(1, torch.int64, x.shape)

    def step(i: Value, low: Value, high: Value) -> Sequence[Value]:
        open_ = hlo.lt(low, high)
        middle = hlo.shift_right_logical(hlo.add(low, high), one)
        at = middle if sorter is None else take_along(sorter, middle, x.ndim - 1)
        left = goes_left(take_along(edges, at, x.ndim - 1), x)
        low = hlo.select(hlo.and_(open_, hlo.not_(left)), hlo.add(middle, one), low)
        return low, hlo.select(hlo.and_(open_, left), middle, high)

    bounds = [hlo.zeros_like(one), hlo.full_like(one, size)]
    return hlo.fori(size.bit_length(), step, bounds)[0]


def _search(edges: Value, x: Value, right: bool, sorter: Value | None, aval: Aval) -> Value:
    edges, x = scalar(edges), scalar(x)
    dtype = common_dtypes([edges, x])[0]
    shape = x.shape
    if edges.ndim == 1:
        x = hlo.reshape(x, (x.numel,))
    found = searchsorted(hlo.convert(edges, dtype), hlo.convert(x, dtype), right, sorter)
    return hlo.convert(hlo.reshape(found, shape), aval.dtype)


def _searchsorted(
    sorted_sequence: Value,
    self: Value,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: Value | None,
    *,
    aval: Aval,
) -> Value:
    return _search(sorted_sequence, self, right or side == "right", sorter, aval)


def _bucketize(
    self: Value, boundaries: Value, out_int32: bool, right: bool, *, aval: Aval
) -> Value:
    if boundaries.ndim != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return _search(boundaries, self, right, None, aval)


lower(aten.searchsorted.Tensor, _searchsorted)
lower(aten.searchsorted.Scalar, _searchsorted, dynamic="self")
lower(aten.bucketize.Tensor, _bucketize)
lower(aten.bucketize.Scalar, _bucketize, dynamic="self")


def _isin(elements: Value, test_elements: Value, invert: bool, aval: Aval) -> Value:
    x, among = scalar(elements), scalar(test_elements)
    dtype = common_dtypes([x, among])[0]
    flat = hlo.reshape(hlo.convert(x, dtype), (x.numel,))
    among = hlo.reshape(hlo.convert(among, dtype), (among.numel,))
    if among.numel:
        ordered = sort_pairs(among, 0)[0]
        place = searchsorted(ordered, flat, right=False)
        last = hlo.full_like(place, among.numel - 1)
        found = hlo.eq(take_along(ordered, hlo.minimum(place, last), 0), flat)
    else:
        found = hlo.constant(False, torch.bool, flat.shape)
    return hlo.reshape(hlo.not_(found) if invert else found, aval.shape)


@lower(aten.isin.Tensor_Tensor)
def _isin_tensors(
    elements: Value, test_elements: Value, assume_unique: bool, invert: bool, *, aval: Aval
) -> Value:
    return _isin(elements, test_elements, invert, aval)


@lower(aten.isin.Tensor_Scalar, dynamic="test_element")
def _isin_scalar(
    elements: Value, test_element: Value, assume_unique: bool, invert: bool, *, aval: Aval
) -> Value:
    return _isin(elements, test_element, invert, aval)


@lower(aten.isin.Scalar_Tensor, dynamic="element")
def _isin_element(
    element: Value, test_elements: Value, assume_unique: bool, invert: bool, *, aval: Aval
) -> Value:
    return _isin(element, test_elements, invert, aval)
