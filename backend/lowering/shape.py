"""Movement and padding. Views are not here: they are geometry on a storage, never computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .. import hlo
from ..hlo import Value
from ..promotion import scalar
from ..registry import Aval, compose, decompose, lower

aten = torch.ops.aten


@lower(aten.cat)
def _cat(tensors: Sequence[Value], dim: int, *, aval: Aval) -> Value:
    """Empty 1-D operands are skipped whatever the others' rank: torch has always done so."""
    parts = [hlo.convert(x, aval.dtype) for x in tensors if x.shape != (0,)]
    return hlo.concatenate(parts, dim) if parts else hlo.constant(0, aval.dtype, aval.shape)


@lower(aten.stack)
def _stack(tensors: Sequence[Value], dim: int, *, aval: Aval) -> Value:
    rank = len(aval.shape)
    parts = [hlo.expand_dims(hlo.convert(x, aval.dtype), [dim % rank]) for x in tensors]
    return hlo.concatenate(parts, dim % rank)


@lower(aten.repeat)
def _repeat(self: Value, repeats: Sequence[int], *, aval: Aval) -> Value:
    sizes = (1,) * (len(repeats) - self.ndim) + self.shape
    paired = [n for pair in zip(repeats, sizes, strict=True) for n in pair]
    kept = range(1, len(paired), 2)
    return hlo.reshape(hlo.broadcast_in_dim(hlo.reshape(self, sizes), paired, kept), aval.shape)


@lower(aten.roll)
def _roll(self: Value, shifts: Sequence[int], dims: Sequence[int], *, aval: Aval) -> Value:
    x = self if dims else hlo.reshape(self, (self.numel,))
    if x.numel:
        for shift, dim in zip(shifts, dims or [0], strict=True):
            size = x.shape[dim]
            cut = -shift % size
            halves = [
                hlo.slice_in_dim(x, cut, size, dim=dim),
                hlo.slice_in_dim(x, 0, cut, dim=dim),
            ]
            x = hlo.concatenate(halves, dim) if cut else x
    return hlo.reshape(x, aval.shape)


# Padding. torch lists (low, high) from the last dimension; a negative amount crops.


def _pads(x: Value, padding: Sequence[int]) -> list[tuple[int, int]]:
    """(low, high) for every dimension of x."""
    last_first = list(zip(padding[::2], padding[1::2], strict=True))
    return [(0, 0)] * (x.ndim - len(last_first)) + last_first[::-1]


@lower(aten.constant_pad_nd)
def _constant_pad(self: Value, pad: Sequence[int], value: complex, *, aval: Aval) -> Value:
    low, high = zip(*_pads(self, pad), strict=True) if self.ndim else ((), ())
    return hlo.pad(self, hlo.convert(scalar(value), self.dtype), low, high)


Edge = Callable[[Value, int, int, bool], Value]
"""edge(x, dim, width, low): what stands next to x along dim; folded back by its transpose."""


def _mirror(x: Value, dim: int, width: int, low: bool) -> Value:
    size = x.shape[dim]
    start = 1 if low else size - 1 - width
    return hlo.reverse(hlo.slice_in_dim(x, start, start + width, dim=dim), [dim])


def _repeat_edge(x: Value, dim: int, width: int, low: bool) -> Value:
    start = 0 if low else x.shape[dim] - 1
    edge = hlo.slice_in_dim(x, start, start + 1, dim=dim)
    shape = [width if d == dim else n for d, n in enumerate(x.shape)]
    return hlo.broadcast_in_dim(edge, shape, range(x.ndim))


def _padded(edge: Edge) -> Callable:
    def lowered(self: Value, padding: Sequence[int], *, aval: Aval) -> Value:
        x = self
        for dim, (low, high) in enumerate(_pads(self, padding)):
            parts = [edge(x, dim, low, True)] if low > 0 else []
            parts.append(hlo.slice_in_dim(x, max(-low, 0), x.shape[dim] - max(-high, 0), dim=dim))
            parts += [edge(x, dim, high, False)] if high > 0 else []
            x = hlo.concatenate(parts, dim)
        return x

    return lowered


def _place(part: Value, start: int, size: int, dim: int) -> Value:
    """`part` at `start` of a dimension of `size` zeros."""
    low, high = [0] * part.ndim, [0] * part.ndim
    low[dim], high[dim] = start, size - start - part.shape[dim]
    return hlo.pad_zero(part, low, high)


def _mirror_back(grad: Value, dim: int, size: int, low: bool) -> Value:
    start = 1 if low else size - 1 - grad.shape[dim]
    return _place(hlo.reverse(grad, [dim]), start, size, dim)


def _repeat_edge_back(grad: Value, dim: int, size: int, low: bool) -> Value:
    total = hlo.expand_dims(hlo.reduce_sum(grad, [dim]), [dim])
    return _place(total, 0 if low else size - 1, size, dim)


def _padded_backward(fold: Edge) -> Callable:
    """The transpose of `_padded`: the padding's gradient is added to what it was copied from."""

    def lowered(grad_output: Value, self: Value, padding: Sequence[int], *, aval: Aval) -> Value:
        grad = hlo.opmath(grad_output)
        for dim, (low, high) in reversed(list(enumerate(_pads(self, padding)))):
            size, whole = self.shape[dim], grad.shape[dim]
            start, stop = max(low, 0), whole - max(high, 0)
            total = _place(hlo.slice_in_dim(grad, start, stop, dim=dim), max(-low, 0), size, dim)
            if low > 0:
                edge = hlo.slice_in_dim(grad, 0, low, dim=dim)
                total = hlo.add(total, fold(edge, dim, size, True))
            if high > 0:
                edge = hlo.slice_in_dim(grad, stop, whole, dim=dim)
                total = hlo.add(total, fold(edge, dim, size, False))
            grad = total
        return hlo.convert(grad, aval.dtype)

    return lowered


lower(aten.reflection_pad1d, _padded(_mirror))
lower(aten.reflection_pad2d, _padded(_mirror))
lower(aten.reflection_pad3d, _padded(_mirror))
lower(aten.replication_pad1d, _padded(_repeat_edge))
lower(aten.replication_pad2d, _padded(_repeat_edge))
lower(aten.replication_pad3d, _padded(_repeat_edge))
lower(aten.reflection_pad1d_backward, _padded_backward(_mirror_back))
lower(aten.reflection_pad2d_backward, _padded_backward(_mirror_back))
lower(aten.reflection_pad3d_backward, _padded_backward(_mirror_back))
lower(aten.replication_pad1d_backward, _padded_backward(_repeat_edge_back))
lower(aten.replication_pad2d_backward, _padded_backward(_repeat_edge_back))
lower(aten.replication_pad3d_backward, _padded_backward(_repeat_edge_back))


# Gradients of views: the cotangent in its place, zeros elsewhere. Positions are operands, so that
# a loop over x[i] or over minibatches compiles once.


def _start(value: object, size: int) -> Value:
    """A position as torch's slicing reads it: from the end if negative, clipped to the size."""
    start = hlo.convert(scalar(value), torch.int64)
    zero, end = hlo.zeros_like(start), hlo.full_like(start, size)
    start = hlo.select(hlo.lt(start, zero), hlo.add(start, end), start)
    return hlo.clamp(zero, start, end)


def _place_at(part: Value, shape: Sequence[int], dim: int, start: object) -> Value:
    starts = [hlo.constant(0, torch.int64)] * len(shape)
    starts[dim] = _start(start, shape[dim])
    return hlo.dynamic_update_slice(hlo.constant(0, part.dtype, shape), part, starts)


@lower(aten.select_backward, dynamic="index")
def _select_backward(
    grad_output: Value, input_sizes: Sequence[int], dim: int, index: Value, *, aval: Aval
) -> Value:
    dim %= len(input_sizes)
    return _place_at(hlo.expand_dims(grad_output, [dim]), aval.shape, dim, index)


@lower(aten.slice_backward, dynamic="start end")
def _slice_backward(
    grad_output: Value,
    input_sizes: Sequence[int],
    dim: int,
    start: Value,
    end: Value,
    step: int,
    *,
    aval: Aval,
) -> Value:
    if grad_output.numel == 0:
        return hlo.constant(0, aval.dtype, aval.shape)
    dim %= len(input_sizes)
    none, gaps = [0] * grad_output.ndim, [0] * grad_output.ndim
    gaps[dim] = step - 1
    spaced = hlo.pad(grad_output, hlo.constant(0, grad_output.dtype), none, none, gaps)
    return _place_at(spaced, aval.shape, dim, start)


def _in_zeros(view: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def backward(grad: torch.Tensor, sizes: Sequence[int], *geometry: int) -> torch.Tensor:
        whole = grad.new_zeros(sizes)
        view(whole, *geometry).copy_(grad)
        return whole

    return backward


decompose(aten.diagonal_backward, using=_in_zeros(torch.diagonal))
decompose(aten.unfold_backward)


def _scattered(view: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A copy of self whose view is replaced."""

    def written(self: torch.Tensor, src: torch.Tensor, *geometry: object) -> torch.Tensor:
        whole = self.clone(memory_format=torch.contiguous_format)
        view(whole, *geometry).copy_(src)
        return whole

    return written


decompose(aten.select_scatter, using=_scattered(aten.select.int))
decompose(aten.slice_scatter, using=_scattered(aten.slice.Tensor))
decompose(aten.diagonal_scatter, using=_scattered(aten.diagonal.default))


@compose(aten.as_strided_scatter)
def _as_strided_scatter(
    self: torch.Tensor,
    src: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """The strides speak of self's storage, which a row does not see; all of it is copied."""
    storage = self.untyped_storage().nbytes() // self.element_size()
    whole = self.as_strided((storage,), (1,), 0).clone()
    copy = whole.as_strided(self.shape, self.stride(), self.storage_offset())
    start = self.storage_offset() if storage_offset is None else storage_offset
    copy.as_strided(size, stride, start).copy_(src)
    return copy


@compose(aten.as_strided_copy)
def _as_strided_copy(
    self: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    view = self.as_strided(size, stride, storage_offset)
    return view.clone(memory_format=torch.contiguous_format)


# A copy of a view is the view, read.

decompose(aten.alias_copy, using=aten.alias.default)
decompose(aten.diagonal_copy, using=aten.diagonal.default)
decompose(aten.expand_copy, using=aten.expand.default)
decompose(aten.narrow_copy, using=torch.narrow)
decompose(aten.permute_copy, using=aten.permute.default)
decompose(aten.select_copy.int, using=aten.select.int)
decompose(aten.slice_copy.Tensor, using=aten.slice.Tensor)
decompose(aten.split_copy.Tensor, using=aten.split.Tensor)
decompose(aten.split_with_sizes_copy, using=aten.split_with_sizes.default)
decompose(aten.squeeze_copy.default, using=aten.squeeze.default)
decompose(aten.squeeze_copy.dim, using=aten.squeeze.dim)
decompose(aten.squeeze_copy.dims, using=aten.squeeze.dims)
decompose(aten.t_copy, using=aten.t.default)
decompose(aten.transpose_copy.int, using=aten.transpose.int)
decompose(aten.unbind_copy.int, using=aten.unbind.int)
decompose(aten.unfold_copy, using=aten.unfold.default)
decompose(aten.unsqueeze_copy, using=aten.unsqueeze.default)
decompose(aten.view_copy.default, using=aten.view.default)
decompose(aten.view_copy.dtype, using=aten.view.dtype)
decompose(aten.channel_shuffle)
