"""Layer, group, batch and root-mean-square normalization, forward and backward.

All are one formula, y = (x - mean) * rstd * weight + bias with mean and rstd over some dimensions;
they differ in those dimensions and in where weight lies. Statistics are in float32 or wider, and
the variance is the mean of squared differences, which survives a mean far from zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import hlo
from ..hlo import Value
from ..promotion import scalar
from ..registry import Aval, compose, decompose, lower

aten = torch.ops.aten
Dims = Sequence[int]
Gradients = tuple[Value | None, Value | None, Value | None]


def _others(x: Value, dims: Dims) -> list[int]:
    return [i for i in range(x.ndim) if i not in dims]


def _mean(x: Value, dims: Dims) -> Value:
    count = hlo.numel([x.shape[i] for i in dims])
    total = hlo.reduce_sum(x, dims)
    return hlo.divide(total, hlo.full_like(total, count))


def _along(x: Value, like: Value, dims: Dims) -> Value:
    """Broadcast x, whose dimensions are `dims` of `like`."""
    x = hlo.convert(x, like.dtype)
    return hlo.broadcast_in_dim(hlo.reshape(x, [like.shape[i] for i in dims]), like.shape, dims)


def _times(x: Value, factor: Value | None, dims: Dims) -> Value:
    return x if factor is None else hlo.multiply(x, _along(factor, x, dims))


def _shifted(x: Value, shift: Value | None, dims: Dims) -> Value:
    return x if shift is None else hlo.add(x, _along(shift, x, dims))


def _centred(x: Value, mean: Value | None, dims: Dims) -> Value:
    """x - mean, where mean lies along the dimensions that are not in `dims`."""
    return x if mean is None else hlo.subtract(x, _along(mean, x, _others(x, dims)))


def _reciprocal_deviation(variance: Value, eps: object) -> Value:
    eps = hlo.broadcast(hlo.convert(scalar(eps), variance.dtype), variance.shape)
    return hlo.rsqrt(hlo.add(variance, eps))


def _gradients(
    grad: Value,
    x: Value,
    mean: Value | None,
    rstd: Value,
    weight: Value | None,
    dims: Dims,
    weight_dims: Dims,
    constant_statistics: bool = False,
) -> tuple[Value, Value, Value]:
    """Gradients by x, weight and bias; statistics are over `dims`, or do not depend on x."""
    grad, x = hlo.opmath(grad), hlo.opmath(x)
    kept = _others(x, dims)
    normal = _times(_centred(x, mean, dims), rstd, kept)
    product = hlo.multiply(grad, normal)
    inner = _times(grad, weight, weight_dims)
    if not constant_statistics:
        slope = _mean(_times(product, weight, weight_dims), dims)
        tilt = hlo.multiply(normal, _along(slope, normal, kept))
        inner = _centred(inner, None if mean is None else _mean(inner, dims), dims)
        inner = hlo.subtract(inner, tilt)
    rest = _others(x, weight_dims)
    return _times(inner, rstd, kept), hlo.reduce_sum(product, rest), hlo.reduce_sum(grad, rest)


def _asked(gradients: Sequence[Value], output_mask: Sequence[bool], avals: object) -> list:
    """The gradients that torch's Meta kernel has too, in their final shapes."""
    given = iter(avals if isinstance(avals, tuple) and not isinstance(avals, Aval) else (avals,))
    return [
        hlo.reshape(gradient, next(given).shape) if asked else None
        for gradient, asked in zip(gradients, output_mask, strict=False)
    ]


# Statistics over the last dimensions.


@lower(aten.native_layer_norm)
def native_layer_norm(
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
    aval: Sequence[Aval],
) -> tuple[Value, Value, Value]:
    x = hlo.opmath(input)
    dims = range(x.ndim - len(normalized_shape), x.ndim)
    mean = _mean(x, dims)
    centred = _centred(x, mean, dims)
    rstd = _reciprocal_deviation(_mean(hlo.square(centred), dims), eps)
    result = _times(_times(centred, rstd, _others(x, dims)), weight, dims)
    mean, rstd = (hlo.reshape(v, aval[1].shape) for v in (mean, rstd))
    return _shifted(result, bias, dims), mean, rstd


@lower(aten.native_layer_norm_backward)
def native_layer_norm_backward(
    grad_out: Value,
    input: Value,
    normalized_shape: Sequence[int],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    output_mask: Sequence[bool],
    aval: Aval | tuple[Aval, ...],
) -> list[Value | None]:
    dims = range(input.ndim - len(normalized_shape), input.ndim)
    gradients = _gradients(grad_out, input, mean, rstd, weight, dims, dims)
    given = (True, weight is not None, bias is not None)
    mask = [asked and there for asked, there in zip(output_mask, given, strict=True)]
    return _asked(gradients, mask, aval)


@lower(aten._fused_rms_norm)
def _fused_rms_norm(
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None,
    eps: float | None,
    aval: Sequence[Aval],
) -> tuple[Value, Value]:
    x = hlo.opmath(input)
    dims = range(x.ndim - len(normalized_shape), x.ndim)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    rstd = _reciprocal_deviation(_mean(hlo.square(x), dims), eps)
    result = _times(_times(x, rstd, _others(x, dims)), weight, dims)
    return result, hlo.reshape(rstd, aval[1].shape)


@lower(aten._fused_rms_norm_backward)
def _fused_rms_norm_backward(
    grad_out: Value,
    input: Value,
    normalized_shape: Sequence[int],
    rstd: Value,
    weight: Value | None,
    output_mask: Sequence[bool],
    aval: Aval | tuple[Aval, ...],
) -> list[Value | None]:
    dims = range(input.ndim - len(normalized_shape), input.ndim)
    gradients = _gradients(grad_out, input, None, rstd, weight, dims, dims)
    return _asked(gradients[:2], [output_mask[0], output_mask[1] and weight is not None], aval)


# Statistics of each sample over groups of channels: x as [n, groups, channels, positions].


@lower(aten.native_group_norm)
def native_group_norm(
    input: Value,
    weight: Value | None,
    bias: Value | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
    aval: Sequence[Aval],
) -> tuple[Value, Value, Value]:
    x = hlo.reshape(hlo.opmath(input), (N, group, C // group, HxW))
    mean = _mean(x, (2, 3))
    centred = _centred(x, mean, (2, 3))
    rstd = _reciprocal_deviation(_mean(hlo.square(centred), (2, 3)), eps)
    result = _times(_times(centred, rstd, (0, 1)), weight, (1, 2))
    return hlo.reshape(_shifted(result, bias, (1, 2)), input.shape), mean, rstd


@lower(aten.native_group_norm_backward)
def native_group_norm_backward(
    grad_out: Value,
    input: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
    aval: Aval | tuple[Aval, ...],
) -> list[Value | None]:
    grad, x = (hlo.reshape(v, (N, group, C // group, HxW)) for v in (grad_out, input))
    return _asked(_gradients(grad, x, mean, rstd, weight, (2, 3), (1, 2)), output_mask, aval)


# Statistics of each channel over the batch.


def _batch_norm(
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: object,
    eps: object,
) -> list[Value | None]:
    """Result, mean, rstd and the new running statistics."""
    x = hlo.opmath(input)
    dims = _others(x, (1,))
    if training or running_mean is None or running_var is None:
        mean = _mean(x, dims)
        centred = _centred(x, mean, dims)
        total = hlo.reduce_sum(hlo.square(centred), dims)
        count = hlo.numel([x.shape[i] for i in dims])
        variance = hlo.divide(total, hlo.full_like(total, count))
        unbiased = hlo.divide(total, hlo.full_like(total, count - 1))
        running_mean = _moved(running_mean, mean, momentum)
        running_var = _moved(running_var, unbiased, momentum)
    else:
        mean, variance = (hlo.convert(v, x.dtype) for v in (running_mean, running_var))
        centred = _centred(x, mean, dims)
    rstd = _reciprocal_deviation(variance, eps)
    result = _shifted(_times(_times(centred, rstd, (1,)), weight, (1,)), bias, (1,))
    return [result, mean, rstd, running_mean, running_var]


def _moved(running: Value | None, current: Value, momentum: object) -> Value | None:
    """momentum * current + (1 - momentum) * running."""
    if running is None:
        return None
    part = hlo.broadcast(hlo.convert(scalar(momentum), current.dtype), current.shape)
    keep = hlo.subtract(hlo.full_like(part, 1), part)
    running = hlo.convert(running, current.dtype)
    return hlo.add(hlo.multiply(part, current), hlo.multiply(keep, running))


lower(aten._native_batch_norm_legit_functional, _batch_norm, dynamic="momentum")


@lower(aten._native_batch_norm_legit.no_stats)
def _no_stats(
    input: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Value | None]:
    return _batch_norm(input, weight, bias, None, None, training, momentum, eps)[:3]


@lower(aten._native_batch_norm_legit_no_training)
def _no_training(
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> list[Value | None]:
    return _batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)[:3]


@lower(aten._batch_norm_no_update)
def _no_update(
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: float,
    eps: float,
    aval: Sequence[Aval],
) -> list[Value | None]:
    results = _batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
    return [*results[:3], hlo.constant(0, aval[3].dtype, aval[3].shape)]


@lower(aten._batch_norm_with_update_functional, dynamic="momentum")
def _with_update(
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: object,
    eps: float,
    aval: Sequence[Aval],
) -> list[Value | None]:
    results = _batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return [*results[:3], hlo.constant(0, aval[3].dtype, aval[3].shape), *results[3:]]


def _legit(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Out of training there are no saved statistics, in torch's CPU kernel as here."""
    statistics = (running_mean, running_var)
    result, *_ = aten._native_batch_norm_legit_no_training(
        input, weight, bias, *statistics, momentum, eps
    )
    return result, input.new_empty(0), input.new_empty(0)


compose(aten._native_batch_norm_legit, _legit, when=lambda training, **_: not training)


@compose(aten.native_batch_norm)
def native_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Its schema hides that it writes to the running statistics; the ops called here say so."""
    if running_mean is None or running_var is None:
        return aten._native_batch_norm_legit.no_stats(input, weight, bias, training, momentum, eps)
    statistics = (running_mean, running_var)
    legit = aten._native_batch_norm_legit if training else _legit
    return legit(input, weight, bias, *statistics, training, momentum, eps)


@lower(aten.native_batch_norm_backward)
def native_batch_norm_backward(
    grad_out: Value,
    input: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value,  # None if train
    save_mean: Value | None,
    save_invstd: Value,  # None or empty unless train
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
    aval: Aval | tuple[Aval, ...],
) -> list[Value | None]:
    mean, rstd = save_mean, save_invstd
    if not train:
        mean, rstd = running_mean, _reciprocal_deviation(hlo.opmath(running_var), eps)
    dims = _others(input, (1,))
    gradients = _gradients(grad_out, input, mean, rstd, weight, dims, (1,), not train)
    return _asked(gradients, output_mask, aval)


@lower(aten.batch_norm_backward)
def batch_norm_backward(
    grad_out: Value,
    input: Value,
    weight: Value,
    running_mean: Value | None,
    running_var: Value,
    save_mean: Value | None,
    save_var: Value,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Value,
    aval: Aval | tuple[Aval, ...],
) -> list[Value | None]:
    running, saved = (running_mean, running_var), (save_mean, save_var)
    return native_batch_norm_backward(
        grad_out, input, weight, *running, *saved, update, eps, output_mask, aval
    )


decompose(aten._weight_norm_interface, aten.renorm)
