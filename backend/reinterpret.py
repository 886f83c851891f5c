"""The same memory as another dtype. StableHLO's bitcast knows neither bool bytes nor complex."""

from __future__ import annotations

import torch

from . import hlo
from .dtypes import real_of
from .hlo import Value


def reinterpret(x: Value, dtype: torch.dtype) -> Value:
    """The same bytes as another dtype: a wider one consumes the last dimension, of as many
    elements as fit in one; a narrower one appends such a dimension. Bools are bytes of 0 or 1.
    """
    if x.dtype == dtype:
        return x
    group = max(x.dtype.itemsize, dtype.itemsize)
    lead = x.shape if x.dtype.itemsize == group else x.shape[:-1]
    target = torch.uint8 if dtype is torch.bool else real_of(dtype)
    x = _components(x)
    x = _bitcast(hlo.reshape(x, (*lead, group // x.dtype.itemsize)), target)
    if dtype.is_complex:
        x = _paired(x)
    return hlo.reshape(hlo.convert(x, dtype), lead if dtype.itemsize == group else x.shape)


def _bitcast(x: Value, dtype: torch.dtype) -> Value:
    """Reinterpret within the last dimension: [..., n] to [..., n * itemsize / new itemsize]."""
    *lead, size = x.shape
    count = size * x.dtype.itemsize // dtype.itemsize
    if count < size:
        x = hlo.reshape(x, (*lead, count, size // count))
    return hlo.reshape(hlo.bitcast_convert(x, dtype), (*lead, count))


def _components(x: Value) -> Value:
    """Bools as bytes; complex numbers as a last dimension of (real, imaginary)."""
    if x.dtype is torch.bool:
        return hlo.convert(x, torch.uint8)
    if not x.dtype.is_complex:
        return x
    parts = [hlo.expand_dims(part, [-1]) for part in (hlo.real(x), hlo.imag(x))]
    return hlo.concatenate(parts, -1)


def _paired(x: Value) -> Value:
    """[..., 2 n] real numbers as [..., n] complex ones."""
    *lead, size = x.shape
    pairs = hlo.reshape(x, (*lead, size // 2, 2))
    parts = [hlo.slice_in_dim(pairs, i, i + 1, dim=-1) for i in (0, 1)]
    return hlo.reshape(hlo.complex_(*parts), (*lead, size // 2))
