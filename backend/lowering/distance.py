"""Distances between all rows of two matrices (cdist), or of one (pdist), and their gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..registry import decompose

aten = torch.ops.aten


def _differences(x1: Tensor, x2: Tensor) -> Tensor:
    """[..., p, m] and [..., r, m] to [..., p, r, m]; never stored where it is reduced at once."""
    return x1.unsqueeze(-2) - x2.unsqueeze(-3)


def cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    return _norm(_differences(x1, x2), p)


def _norm(difference: Tensor, p: float) -> Tensor:
    size = difference.abs()
    if p == 0:
        return (size != 0).to(size.dtype).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return (size * size).sum(-1).sqrt()
    if math.isinf(p):
        return size.amax(-1) if size.shape[-1] else size.sum(-1)
    return size.pow(p).sum(-1).pow(1 / p)


def cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    if grad.numel() == 0 or x1.shape[-1] == 0:
        return torch.zeros_like(x1)  # not broadcast over x2's batch, as torch's kernels have it
    slope = _slope(_differences(x1, x2), p, cdist.unsqueeze(-1))
    return (grad.unsqueeze(-1) * slope).sum(-2)


def _slope(difference: Tensor, p: float, distance: Tensor) -> Tensor:
    """The derivative of the distance by the difference; zero where the distance is zero."""
    size, sign = difference.abs(), difference.sign()
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return sign
    if math.isinf(p):
        return torch.where(size == distance, sign, 0.0)
    slope = sign * (size / distance).pow(p - 1)
    undefined = (distance == 0) | ((difference == 0) if p < 1 else False)
    return torch.where(undefined, 0.0, slope)


# pdist: the pairs i < j, row by row.


def _pairs(rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    i, j = torch.triu_indices(rows, rows, 1, device=device)
    return i, j


def pdist(self: Tensor, p: float = 2.0) -> Tensor:
    i, j = _pairs(self.shape[0], self.device)
    return _norm(self[i] - self[j], p)


def pdist_backward(grad: Tensor, self: Tensor, p: float, pdist: Tensor) -> Tensor:
    i, j = _pairs(self.shape[0], self.device)
    part = grad.unsqueeze(-1) * _slope(self[i] - self[j], p, pdist.unsqueeze(-1))
    return torch.zeros_like(self).index_add(0, i, part).index_add(0, j, -part)


decompose(aten._cdist_forward, using=cdist)
decompose(aten._cdist_backward, using=cdist_backward)
decompose(aten._pdist_forward, using=pdist)
decompose(aten._pdist_backward, using=pdist_backward)
