"""Reading by index tensors: gather and its relatives.

Where torch lets an index count from the end (`wrap`), so does the program. Nothing is checked
inside it: XLA's gather clamps an index that is out of bounds, its scatter drops the update. The
debug mode checks (bounds.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .. import hlo
from ..hlo import Shape, Value
from ..registry import Aval, lower

aten = torch.ops.aten


def wrap(index: Value, size: int) -> Value:
    """Count indices below zero from the end."""
    negative = hlo.lt(index, hlo.zeros_like(index))
    return hlo.select(negative, hlo.add(index, hlo.full_like(index, size)), index)


def is_mask(index: object) -> bool:
    """bool selects; so does uint8, torch's older mask."""
    return getattr(index, "dtype", None) in (torch.bool, torch.uint8)


def check_mask(shape: Sequence[int], mask: Sequence[int], at: int) -> None:
    """A mask covers whole dimensions of what it indexes, from dimension `at` on."""
    for d, size in enumerate(mask):
        if at + d >= len(shape) or shape[at + d] != size:
            raise IndexError(
                f"The shape of the mask {list(mask)} at index {d} does not match the shape of "
                f"the indexed tensor {list(shape)} at index {at + d}"
            )


def _column(index: Value) -> Value:
    """Index vectors of length one: a trailing dimension of size 1."""
    return hlo.reshape(index, (*index.shape, 1))


def take_rows(x: Value, index: Value, dim: int = 0) -> Value:
    """x[..., index, ...]: index's dimensions replace dimension `dim`; no wrapping."""
    sizes = [1 if d == dim else n for d, n in enumerate(x.shape)]
    rank = x.ndim - 1 + index.ndim
    return hlo.gather(
        x,
        _column(index),
        offset_dims=[d for d in range(rank) if not dim <= d < dim + index.ndim],
        collapsed=[dim],
        start_index_map=[dim],
        index_vector_dim=index.ndim,
        slice_sizes=sizes,
    )


def take_along(x: Value, index: Value, dim: int) -> Value:
    """out[.., i, ..] = x[.., index[.., i, ..], ..]; index may be smaller than x elsewhere."""
    if index.numel == 0:
        return hlo.constant(0, x.dtype, index.shape)
    dim %= x.ndim
    others = [d for d in range(x.ndim) if d != dim]
    limits = [x.shape[d] if d == dim else index.shape[d] for d in range(x.ndim)]
    return hlo.gather(
        hlo.slice_(x, [0] * x.ndim, limits),
        _column(index),
        offset_dims=[],
        collapsed=[dim],
        start_index_map=[dim],
        index_vector_dim=index.ndim,
        slice_sizes=[1] * x.ndim,
        operand_batching=others,
        indices_batching=others,
    )


# torch's advanced indexing: index.Tensor reads and index_put writes by the same plan.


@dataclass(frozen=True)
class Plan:
    """How x[indices] addresses x: some dimensions by index tensors, the others whole.

    starts: [*batch, k] index vectors for the k dimensions `dims`. at: where the batch dimensions
    stand in the result, which is where the index tensors stood if those are adjacent, else first.
    """

    dims: list[int]
    starts: Value
    batch: Shape
    at: int
    result: Shape

    @property
    def window(self) -> list[int]:
        """The result's dimensions that are whole dimensions of x."""
        return [d for d in range(len(self.result)) if not self.at <= d < self.at + len(self.batch)]


def plan(shape: Shape, indices: Sequence[Value | None]) -> Plan:
    dims = [d for d, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    batch = hlo.broadcast_shapes(*(index.shape for index in given))
    columns = [
        _column(hlo.broadcast(wrap(hlo.convert(index, torch.int64), shape[d]), batch))
        for d, index in zip(dims, given, strict=True)
    ]
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    at = dims[0] if adjacent else 0
    whole = [n for d, n in enumerate(shape) if d not in dims]
    result = (*whole[:at], *batch, *whole[at:])
    return Plan(dims, hlo.concatenate(columns, -1), batch, at, result)


@lower(aten.index.Tensor)
def _index(self: Value, indices: Sequence[Value | None], *, aval: Aval) -> Value:
    if aval.shape == self.shape and all(index is None for index in indices):
        return self
    p = plan(self.shape, indices)
    if 0 in p.result:
        return hlo.constant(0, self.dtype, p.result)
    return hlo.gather(
        self,
        p.starts,
        offset_dims=p.window,
        collapsed=p.dims,
        start_index_map=p.dims,
        index_vector_dim=len(p.batch),
        slice_sizes=[1 if d in p.dims else n for d, n in enumerate(self.shape)],
    )


lower(aten._unsafe_index.Tensor, _index)


@lower(aten.index_select)
def _index_select(self: Value, dim: int, index: Value, *, aval: Aval) -> Value:
    if index.ndim > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    if 0 in aval.shape:
        return hlo.constant(0, self.dtype, aval.shape)
    if self.ndim == 0:
        return hlo.reshape(self, aval.shape)
    return take_rows(self, hlo.reshape(index, (index.numel,)), dim % self.ndim)


@lower(aten.gather)
def _gather(self: Value, dim: int, index: Value, sparse_grad: bool, *, aval: Aval) -> Value:
    if self.ndim == 0 or index.ndim == 0:
        return hlo.reshape(self, aval.shape)
    return take_along(self, index, dim)


@lower(aten.take)
def _take(self: Value, index: Value, *, aval: Aval) -> Value:
    if index.numel == 0:
        return hlo.constant(0, self.dtype, aval.shape)
    return take_rows(hlo.reshape(self, (self.numel,)), wrap(index, self.numel))


@lower(aten.embedding)
def _embedding(
    weight: Value,
    indices: Value,
    padding_idx: int,
    scale_grad_by_freq: bool,
    sparse: bool,
    *,
    aval: Aval,
) -> Value:
    if 0 in aval.shape:
        return hlo.constant(0, weight.dtype, aval.shape)
    return take_rows(weight, indices)
