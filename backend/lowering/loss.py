"""Losses and their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import hlo
from ..hlo import Value
from ..registry import Aval, decompose, lower

aten = torch.ops.aten

_NONE, _MEAN = 0, 1  # torch's codes of a reduction; 2 is the sum


# Negative log likelihood. log-probabilities: [n, c, ...] or [c], target: [n, ...] or [].


def _class_dim(x: Value) -> int:
    return 1 if x.ndim > 1 else 0


def _picked(x: Value, target: Value) -> Value:
    """x at the class that each target names; a target out of range gives NaN."""
    dim = _class_dim(x)
    classes = x.shape[dim]
    if x.numel == 0:  # a gather needs an operand with elements
        return hlo.constant(float("nan"), x.dtype, target.shape)
    batch = [i for i in range(x.ndim) if i != dim]
    target = hlo.convert(target, torch.int64)
    picked = hlo.gather(
        x,
        hlo.expand_dims(target, [-1]),
        offset_dims=(),
        collapsed=[dim],
        start_index_map=[dim],
        index_vector_dim=target.ndim,
        slice_sizes=(1,) * x.ndim,
        operand_batching=batch,
        indices_batching=range(target.ndim),
    )
    low, high = (hlo.full_like(target, bound) for bound in (0, classes))
    inside = hlo.and_(hlo.ge(target, low), hlo.lt(target, high))
    return hlo.select(inside, picked, hlo.full_like(picked, float("nan")))


def _over_classes(weight: Value, like: Value) -> Value:
    return hlo.broadcast_in_dim(hlo.convert(weight, like.dtype), like.shape, [_class_dim(like)])


def _counted(target: Value, ignore_index: int) -> Value:
    return hlo.ne(target, hlo.full_like(target, ignore_index))


def nll_loss_forward(
    self: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    aval: tuple[Aval, Aval],
) -> tuple[Value, Value]:
    x = hlo.opmath(self)
    target = hlo.reshape(target, [n for i, n in enumerate(x.shape) if i != _class_dim(x)])
    counted = _counted(target, ignore_index)
    safe = hlo.select(counted, target, hlo.zeros_like(target))
    loss = hlo.negate(_picked(x, safe))
    share = hlo.full_like(loss, 1)
    if weight is not None:
        share = _picked(_over_classes(weight, x), safe)
        loss = hlo.multiply(loss, share)
    zero = hlo.zeros_like(loss)
    loss, share = hlo.select(counted, loss, zero), hlo.select(counted, share, zero)
    if reduction == _NONE and x.ndim > 1:
        return loss, hlo.constant(0, x.dtype)
    total, total_weight = (hlo.reduce_sum(v, range(v.ndim)) for v in (loss, share))
    if reduction == _MEAN:
        total = hlo.divide(total, total_weight)
    return hlo.reshape(total, aval[0].shape), total_weight


def nll_loss_backward(
    grad_output: Value,
    self: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    total_weight: Value,
) -> Value:
    """-weight * grad_output at the class of each target, and zero elsewhere."""
    dim = _class_dim(self)
    rest = [i for i in range(self.ndim) if i != dim]
    grad = hlo.opmath(grad_output)
    if reduction == _MEAN:
        grad = hlo.divide(grad, hlo.broadcast(hlo.convert(total_weight, grad.dtype), grad.shape))
    target = hlo.reshape(target, [self.shape[i] for i in rest])
    lies = hlo.broadcast_in_dim(target, self.shape, rest)
    grad = hlo.broadcast_in_dim(grad, self.shape, rest if grad.ndim else ())
    if weight is not None:
        grad = hlo.multiply(grad, _over_classes(weight, grad))
    chosen = hlo.eq(lies, hlo.iota(self.shape, dim, target.dtype))
    chosen = hlo.and_(chosen, _counted(lies, ignore_index))
    return hlo.select(chosen, hlo.negate(grad), hlo.zeros_like(grad))


# Margins.


def _per_sample(grad_output: Tensor, classes: int, samples: int, reduction: int) -> Tensor:
    """The share of grad_output that falls to one class of one sample: [n, 1] or [1, 1]."""
    share = grad_output.reshape(-1, 1) / classes
    return share / samples if reduction == _MEAN else share


def multi_margin_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    p: float,
    margin: float,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    x, target = self.reshape(-1, self.shape[-1] if self.ndim else 1), target.reshape(-1, 1)
    own = torch.arange(x.shape[1], device=x.device) == target
    excess = margin - x.gather(1, target) + x
    slope = torch.where(own | (excess <= 0), 0.0, 1.0 if p == 1 else p * excess)
    if weight is not None:
        slope = slope * weight[target]
    slope = torch.where(own, -slope.sum(1, keepdim=True), slope)
    return (slope * _per_sample(grad_output, x.shape[1], x.shape[0], reduction)).reshape(self.shape)


def multilabel_margin_loss_forward(
    self: Tensor, target: Tensor, reduction: int
) -> tuple[Tensor, Tensor]:
    """torch's decomposition counts the places after the first -1 as targets of class 0."""
    classes = self.shape[-1] if self.ndim else 1
    x, labels = self.reshape(-1, classes), target.reshape(-1, classes)
    counted, safe = (labels >= 0).cumprod(1), labels.clamp(min=0)
    own = torch.zeros_like(x).scatter_add(1, safe, counted.to(x.dtype)).clamp(max=1)
    excess = (1 - x.gather(1, safe).unsqueeze(2) + x.unsqueeze(1)).clamp(min=0)
    active = (own == 0).unsqueeze(1) & (counted > 0).unsqueeze(2)
    loss = torch.where(active, excess, 0).sum((1, 2)) / classes
    if reduction != _NONE:  # else [1] of one sample, by torch's shape rule; on its CPU []
        loss = loss.mean() if reduction == _MEAN else loss.sum()
    return loss, own.reshape(target.shape)


def multilabel_margin_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    """Every target before the first -1 against every class that is none: [n, target, class]."""
    classes = self.shape[-1] if self.ndim else 1
    x, target, own = (v.reshape(-1, classes) for v in (self, target, is_target))
    counted = (target >= 0).cumprod(1)
    safe = target.clamp(min=0)
    excess = 1 - x.gather(1, safe).unsqueeze(2) + x.unsqueeze(1)
    active = (excess > 0) * (1 - own).unsqueeze(1) * counted.unsqueeze(2)
    slope = active.sum(1).scatter_add(1, safe, -active.sum(2))
    return (slope * _per_sample(grad_output, x.shape[1], x.shape[0], reduction)).reshape(self.shape)


lower(aten.nll_loss_forward, nll_loss_forward)
lower(aten.nll_loss_backward, nll_loss_backward)
lower(aten.nll_loss2d_forward, nll_loss_forward)
lower(aten.nll_loss2d_backward, nll_loss_backward)

decompose(
    aten.binary_cross_entropy,
    aten.binary_cross_entropy_backward,
    aten.binary_cross_entropy_with_logits,
    aten.huber_loss,
    aten.huber_loss_backward,
    aten.mse_loss,
    aten.mse_loss_backward,
    aten.multi_margin_loss,
    aten.smooth_l1_loss,
    aten.smooth_l1_loss_backward,
    aten.soft_margin_loss,
    aten.soft_margin_loss_backward,
)
decompose(aten.multi_margin_loss_backward, using=multi_margin_loss_backward)
decompose(aten.multilabel_margin_loss_forward, using=multilabel_margin_loss_forward)
decompose(aten.multilabel_margin_loss_backward, using=multilabel_margin_loss_backward)
