"""Results whose shape depends on data: one read of a size, then programs of that size.

A mask is compacted by a program whose shape does not depend on how many elements it selects; only
the last step, which takes that many, is compiled for each size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .. import hlo
from ..hlo import Value
from ..registry import Aval, compose, lower
from .indexing import check_mask, is_mask, take_rows
from .scan import ranks
from .scatter import put_rows

aten = torch.ops.aten

_library = torch.library.Library("tpu_kernels", "FRAGMENT")
_library.define("compact(Tensor mask) -> (Tensor count, Tensor places)")
_library.define(
    "take_places(Tensor self, Tensor places, int dim, int covered, int count) -> Tensor"
)
_library.define("unravel(Tensor places, int[] sizes, int count) -> Tensor")


@torch.library.impl(_library, "compact", "Meta")
def _compact_meta(mask: Tensor) -> tuple[Tensor, Tensor]:
    return mask.new_empty((), dtype=torch.int64), mask.new_empty(mask.numel(), dtype=torch.int64)


@torch.library.impl(_library, "take_places", "Meta")
def _take_places_meta(self: Tensor, places: Tensor, dim: int, covered: int, count: int) -> Tensor:
    return self.new_empty((*self.shape[:dim], count, *self.shape[dim + covered :]))


@torch.library.impl(_library, "unravel", "Meta")
def _unravel_meta(places: Tensor, sizes: Sequence[int], count: int) -> Tensor:
    return places.new_empty((len(sizes), count))


internal = torch.ops.tpu_kernels


@lower(internal.compact)
def _compact(mask: Value, *, aval: Sequence[Aval]) -> tuple[Value, Value]:
    """How many elements are true, and their row-major places, in order, at the front."""
    flat = hlo.convert(hlo.reshape(mask, (mask.numel,)), torch.bool)
    rank = ranks(flat)
    place = hlo.select(flat, rank, hlo.full_like(rank, mask.numel))
    zeros = hlo.constant(0, rank.dtype, flat.shape)
    places = put_rows(zeros, place, hlo.iota(flat.shape, 0, rank.dtype), 0, hlo.replace)
    count = hlo.reduce_sum(hlo.convert(flat, torch.int64), [0])
    return count, hlo.convert(places, torch.int64)


@lower(internal.take_places)
def _take_places(
    self: Value, places: Value, dim: int, covered: int, count: int, *, aval: Aval
) -> Value:
    """The first `count` places of the dimensions dim .. dim + covered - 1, taken as one."""
    if 0 in aval.shape:
        return hlo.constant(0, aval.dtype, aval.shape)
    before, after = self.shape[:dim], self.shape[dim + covered :]
    merged = hlo.numel(self.shape[dim : dim + covered])
    x = hlo.reshape(self, (*before, merged, *after))
    return take_rows(x, hlo.slice_in_dim(places, 0, count), dim)


@lower(internal.unravel)
def _unravel(places: Value, sizes: Sequence[int], count: int, *, aval: Aval) -> Value:
    """The first `count` row-major places as one row of indices a dimension."""
    if count == 0 or not sizes:
        return hlo.constant(0, torch.int64, (len(sizes), count))
    rest = hlo.slice_in_dim(places, 0, count)
    rows: list[Value] = []
    for size in reversed(sizes):
        each = hlo.full_like(rest, max(size, 1))
        rows.append(hlo.expand_dims(hlo.remainder(rest, each), [0]))
        rest = hlo.divide(rest, each)
    return hlo.concatenate(rows[::-1])


@compose(aten.nonzero)
def _nonzero(self: Tensor) -> Tensor:
    count, places = internal.compact(self)
    return internal.unravel(places, list(self.shape), int(count)).t()


@compose(aten.masked_select)
def _masked_select(self: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    self, mask = torch.broadcast_tensors(self, mask)
    count, places = internal.compact(mask)
    return internal.take_places(self, places, 0, self.ndim, int(count))


def _into(functional: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The `out=` variant: the caller's tensor takes the size that the data gave."""

    def written(*args: object, out: Tensor, **options: object) -> Tensor:
        result = functional(*args, **options)
        if out.dtype != result.dtype:
            raise RuntimeError(f"Expected out tensor of dtype {result.dtype}, but got {out.dtype}")
        return out.resize_(result.shape).copy_(result)

    return written


compose(aten.nonzero.out, _into(_nonzero))
compose(aten.masked_select.out, _into(_masked_select))


# Advanced indexing with what one program cannot take: masks, and index tensors on the CPU.


def _on_host(self: Tensor, indices: Sequence[Tensor | None]) -> bool:
    """By type alone: the core remembers the answer per device type, and refuses another tpu."""
    return any(index is not None and index.device.type != self.device.type for index in indices)


def _reads_mask(self: Tensor, indices: Sequence[Tensor | None], **_: object) -> bool:
    return any(is_mask(index) for index in indices) or _on_host(self, indices)


def _writes_mixed(self: Tensor, indices: Sequence[Tensor | None], **_: object) -> bool:
    """One mask alone is written through without knowing how much it selects."""
    given = sum(index is not None for index in indices)
    return (given > 1 and any(is_mask(x) for x in indices)) or _on_host(self, indices)


def _expanded(self: Tensor, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Index tensors on self's device, each mask replaced by the positions it selects."""
    out: list[Tensor | None] = []
    for index in indices:
        index = index if index is None else index.to(self.device)
        if is_mask(index):
            check_mask(self.shape, index.shape, len(out))  # type: ignore[union-attr]
            out += index.nonzero().unbind(1)  # type: ignore[union-attr]
        else:
            out.append(index)
    return out


def _index(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(given) > 1 or not is_mask(given[0][1]):
        return aten.index.Tensor(self, _expanded(self, indices))
    dim, mask = given[0]
    check_mask(self.shape, mask.shape, dim)
    count, places = internal.compact(mask.to(self.device))
    return internal.take_places(self, places, dim, mask.ndim, int(count))


compose(aten.index.Tensor, _index, when=_reads_mask)
compose(aten.index.Tensor_out, _into(_index), when=_reads_mask)
compose(aten._unsafe_index.Tensor, _index, when=_reads_mask)


@compose(aten._index_put_impl_, when=_writes_mixed)
def _index_put_impl_(
    self: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor:
    return aten._index_put_impl_(self, _expanded(self, indices), values, accumulate, unsafe)


@compose(aten.index_put_, when=_writes_mixed)
def _index_put_(
    self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    return aten.index_put_(self, _expanded(self, indices), values, accumulate)


@compose(aten.index_put, when=_writes_mixed)
def _index_put(
    self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    return aten.index_put(self, _expanded(self, indices), values, accumulate)


@lower(aten.nonzero_static)
def _nonzero_static(self: Value, size: int, fill_value: int, *, aval: Aval) -> Value:
    count, places = _compact(self, aval=[])
    places = hlo.concatenate([places, hlo.constant(0, torch.int64, (size,))])
    found = hlo.transpose(_unravel(places, self.shape, size, aval=aval), [1, 0])
    real = hlo.lt(hlo.iota(found.shape, 0), hlo.broadcast(count, found.shape))
    return hlo.select(real, found, hlo.full_like(found, fill_value))


@compose(aten._assert_async.default)
def _assert_async(self: Tensor) -> None:
    _assert_async_msg(self, "Expected Tensor with single nonzero value, but got zero")


@compose(aten._assert_async.msg)
def _assert_async_msg(self: Tensor, assert_msg: str) -> None:
    if not self.item():
        raise RuntimeError(assert_msg)


# Sizes that are sums or maxima of the data.


@compose(aten.repeat_interleave.Tensor)
def _repeat_interleave(repeats: Tensor, output_size: int | None = None) -> Tensor:
    ends = repeats.cumsum(0)
    if output_size is None:
        output_size = int(ends[-1]) if repeats.numel() else 0
    places = torch.arange(output_size, device=repeats.device, dtype=ends.dtype)
    return torch.searchsorted(ends, places, right=True).to(repeats.dtype)


@compose(aten.bincount)
def _bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    size = minlength
    if self.numel():
        least, most = torch.stack(torch.aminmax(self)).tolist()
        if least < 0:
            raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
        size = max(size, most + 1)
    if weights is None:
        weights = torch.ones_like(self, dtype=torch.int64)
    elif weights.dtype is not torch.float32:
        weights = weights.double()
    return weights.new_zeros(size).index_add(0, self.long(), weights)


@compose(aten.equal)
def _equal(self: Tensor, other: Tensor) -> bool:
    return self.shape == other.shape and bool((self == other).all())


# Unique elements: sorted, then the starts of the runs.


def _runs(starts: Tensor, order: Tensor | None, counted: bool, inverted: bool) -> list[Tensor]:
    """(positions of the runs' first elements, inverse, counts); order undoes a sort."""
    size = starts.numel()
    first = starts.nonzero().squeeze(1)
    empty = torch.empty(0, dtype=torch.int64, device=starts.device)
    inverse, counts = empty, empty
    if inverted:
        inverse = starts.long().cumsum(0) - 1
        if order is not None:
            inverse = torch.empty_like(inverse).scatter(0, order, inverse)
    if counted:
        counts = torch.diff(first, append=first.new_full((1,), size))
    return [first, inverse, counts]


def _changes(rows: Tensor) -> Tensor:
    """For each element of dimension 0, whether it differs from the one before."""
    differs = (rows[1:] != rows[:-1]).flatten(1).any(1) if rows.ndim > 1 else rows[1:] != rows[:-1]
    return torch.cat([differs.new_ones(min(rows.shape[0], 1)), differs])


def _unique_flat(self: Tensor, inverted: bool, counted: bool) -> tuple[Tensor, Tensor, Tensor]:
    ordered, order = self.reshape(-1).sort(stable=True)
    first, inverse, counts = _runs(_changes(ordered), order, counted, inverted)
    return ordered[first], inverse.view(self.shape) if inverted else inverse, counts


@compose(aten._unique2)
def _unique2(
    self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    return _unique_flat(self, return_inverse, return_counts)


@compose(aten._unique)
def _unique(
    self: Tensor, sorted: bool = True, return_inverse: bool = False
) -> tuple[Tensor, Tensor]:
    return _unique_flat(self, return_inverse, False)[:2]


@compose(aten.unique_consecutive)
def _unique_consecutive(
    self: Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    if dim is not None:
        return aten.unique_dim_consecutive(self, dim, return_inverse, return_counts)
    flat = self.reshape(-1)
    first, inverse, counts = _runs(_changes(flat), None, return_counts, return_inverse)
    return flat[first], inverse.view(self.shape) if return_inverse else inverse, counts


@compose(aten.unique_dim_consecutive)
def _unique_dim_consecutive(
    self: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    first, inverse, counts = _runs(
        _changes(self.movedim(dim, 0)), None, return_counts, return_inverse
    )
    return self.index_select(dim, first), inverse, counts


@compose(aten.unique_dim)
def _unique_dim(
    self: Tensor,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows in lexicographic order: one stable sort for each column, the last one first."""
    rows = self.movedim(dim, 0).flatten(1) if self.ndim > 1 else self.unsqueeze(1)
    order = torch.arange(rows.shape[0], device=self.device)
    for column in reversed(range(rows.shape[1])):
        order = order[rows[order, column].argsort(stable=True)]
    first, inverse, counts = _runs(_changes(rows[order]), order, return_counts, return_inverse)
    return self.index_select(dim, order[first]), inverse, counts
