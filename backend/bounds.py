"""What index tensors may hold. Programs cannot raise, so the debug mode asks here before it runs.

`BOUNDS` maps an op to what its arguments must satisfy. Without the debug mode XLA clamps what a
gather reads and drops what a scatter writes out of bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten


class Bound(NamedTuple):
    """low <= every element of index < high, else `error`; the message may name the {index}."""

    indices: Tensor
    low: int
    high: int
    message: str
    error: type[Exception] = IndexError


def check(op: OpOverload, arguments: dict[str, object]) -> None:
    """Raise as torch's CPU kernel does if an index of this call is out of bounds.

    Reads the index tensors to the host, so it waits for the device.
    """
    if op not in BOUNDS:
        return
    for bound in BOUNDS[op](**arguments):
        index = bound.indices.detach().cpu()
        outside = index[(index < bound.low) | (index >= bound.high)]
        if outside.numel():
            raise bound.error(bound.message.format(index=outside[0].item()))


def _of_dimension(dim: int, size: int) -> str:
    return f"index {{index}} is out of bounds for dimension {dim} with size {size}"


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _advanced(self: Tensor, indices: Sequence[Tensor | None], **_: object) -> Iterable[Bound]:
    for dim, index in enumerate(indices):
        if index is None or _is_mask(index):
            continue
        size = self.shape[dim]
        if size == 0 and index.numel():
            raise IndexError("index is out of bounds for dimension with size 0")
        yield Bound(index, -size, size, _of_dimension(dim, size))


def _advanced_put(
    self: Tensor, indices: Sequence[Tensor | None], values: Tensor, **options: object
) -> Iterable[Bound]:
    if options.get("unsafe"):
        return
    yield from _advanced(self, indices)
    for dim, index in enumerate(indices):
        if index is not None and _is_mask(index):
            yield from _rows_of_mask(self, index, dim, values)


def _rows_of_mask(self: Tensor, mask: Tensor, dim: int, values: Tensor) -> Iterable[Bound]:
    """The k-th selected row takes the k-th row of values: there must be as many."""
    after = self.shape[dim + mask.ndim :]
    axis = values.ndim - 1 - len(after)
    if axis < 0 or values.shape[axis] == 1:
        return
    rows = values.shape[axis]
    result = [*map(str, self.shape[:dim]), "{index}", *map(str, after)]
    message = (
        f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
        f"indexing result of shape [{', '.join(result)}]"
    )
    yield Bound(mask.cpu().count_nonzero(), rows, rows + 1, message, RuntimeError)


def _place(self: Tensor, dim: int) -> tuple[int, int]:
    """(dimension, size), a scalar counting as one element."""
    return (dim % self.ndim, self.shape[dim]) if self.ndim else (0, 1)


def _along(prefix: str, error: type[Exception]) -> Callable[..., list[Bound]]:
    """Indices into one dimension, none below zero."""

    def bounds(self: Tensor, dim: int, index: Tensor, **_: object) -> list[Bound]:
        dim, size = _place(self, dim)
        return [Bound(index, 0, size, prefix + _of_dimension(dim, size), error)]

    return bounds


def _fill(self: Tensor, dim: int, index: Tensor, **_: object) -> list[Bound]:
    dim, size = _place(self, dim)
    return [Bound(index, -size, size, _of_dimension(dim, size))]


def _in_self(self: Tensor, dim: int, index: Tensor, **_: object) -> list[Bound]:
    return [Bound(index, 0, _place(self, dim)[1], "index out of range in self")]


def _flat(self: Tensor, index: Tensor, **_: object) -> list[Bound]:
    size = self.numel()
    if size == 0 and index.numel():
        raise IndexError("take(): tried to take from an empty tensor")
    message = f"out of range: tried to access index {{index}} on a tensor of {size} elements."
    return [Bound(index, -size, size, message)]


def _embedding(weight: Tensor, indices: Tensor, **_: object) -> list[Bound]:
    if weight.ndim != 2:
        return []  # refused for that
    return [Bound(indices, 0, weight.shape[0], "index out of range in self")]


def _embedding_backward(indices: Tensor, num_weights: int, **_: object) -> list[Bound]:
    return [Bound(indices, 0, num_weights, "index out of range in self")]


def _masked_scatter(self: Tensor, mask: Tensor, source: Tensor, **_: object) -> list[Bound]:
    shape = torch.broadcast_shapes(self.shape, mask.shape)
    ones = mask.cpu().expand(shape).count_nonzero()
    message = "Number of elements of source < number of ones in mask"
    return [Bound(ones, 0, source.numel() + 1, message, RuntimeError)]


def _classes(self: Tensor, target: Tensor, ignore_index: int, **_: object) -> list[Bound]:
    labels = target.cpu()
    classes = self.shape[0 if self.ndim == 1 else 1]
    return [Bound(labels[labels != ignore_index], 0, classes, "Target {index} is out of bounds.")]


def _weights(self: Tensor, num_samples: int, replacement: bool, **_: object) -> Iterable[Bound]:
    """Not indices, but in the same need: what a multinomial draws from is a distribution."""
    rows = self.detach().cpu().double()
    finite, positive = rows.isfinite().all(), bool((rows >= 0).all())
    if replacement and num_samples > 1:
        entry = "invalid multinomial distribution (encountering probability entry {})"
        signs, limits = entry.format("< 0"), entry.format("= infinity or NaN")
    else:
        signs = limits = "probability tensor contains either `inf`, `nan` or element < 0"
    yield Bound(torch.tensor(positive or not finite), 1, 2, signs, RuntimeError)
    yield Bound(finite, 1, 2, limits, RuntimeError)
    message = "invalid multinomial distribution (sum of probabilities <= 0)"
    yield Bound((rows.sum(-1) > 0), 1, 2, message, RuntimeError)


_scatter = _along("", RuntimeError)

BOUNDS: dict[OpOverload, Callable[..., Iterable[Bound]]] = {
    aten.index.Tensor: _advanced,
    aten.index_put.default: _advanced_put,
    aten._index_put_impl.default: _advanced_put,
    aten.index_select.default: _in_self,
    aten.index_reduce.default: _in_self,
    aten.gather.default: _scatter,
    aten.scatter.src: _scatter,
    aten.scatter.value: _scatter,
    aten.scatter.reduce: _scatter,
    aten.scatter.value_reduce: _scatter,
    aten.scatter_add.default: _scatter,
    aten.scatter_reduce.two: _scatter,
    aten.index_add.default: _scatter,
    aten.index_copy.default: _along("index_copy_(): ", IndexError),
    aten.index_fill.int_Scalar: _fill,
    aten.index_fill.int_Tensor: _fill,
    aten.take.default: _flat,
    aten.put.default: _flat,
    aten.embedding.default: _embedding,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.masked_scatter.default: _masked_scatter,
    aten.multinomial.default: _weights,
    aten.nll_loss_forward.default: _classes,
    aten.nll_loss2d_forward.default: _classes,
}
