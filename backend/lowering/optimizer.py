"""Fused optimizer steps: one program updates every parameter and its state.

Learning rate, decay, momenta and step count are operands: changing them compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .. import hlo
from ..hlo import Value
from ..promotion import scalar
from ..registry import lower
from . import elementary as e
from .elementary import like

aten = torch.ops.aten

Values = Sequence[Value]
Number = object  # a Python number or a 0-d value


def _one_minus(value: Number) -> Value:
    """1 - value in float64: what is left of a factor near 1 keeps its digits."""
    return hlo.subtract(scalar(1.0), hlo.convert(scalar(value), torch.float64))


def _one_minus_power(base: Number, exponent: Value, dtype: torch.dtype) -> Value:
    """1 - base ** exponent, as a scalar, without the cancellation for a base near 1."""
    logarithm = hlo.log_plus_one(hlo.convert(hlo.negate(_one_minus(base)), dtype))
    power = hlo.multiply(hlo.convert(hlo.reshape(exponent, ()), dtype), logarithm)
    return hlo.negate(hlo.exponential_minus_one(power))


def _times(factor: Number, x: Value) -> Value:
    return hlo.multiply(like(factor, x), x)


def _updated(
    old: Sequence[Values],
    step: Callable[..., Sequence[Value]],
    maximize: bool,
    grad_scale: Value | None,
    found_inf: Value | None,
) -> list[Values]:
    """Apply `step(param, descent, *state)` to every parameter; `old` lists parameters, gradients
    and the states. Gradients are unscaled, and nothing changes where one was not finite."""
    rows = []
    for operands in zip(*old, strict=True):
        param, grad, *state = (hlo.opmath(x) for x in operands)
        if grad_scale is not None:
            grad = hlo.divide(grad, like(hlo.reshape(grad_scale, ()), grad))
        new, *states = step(param, hlo.negate(grad) if maximize else grad, *state)
        row = [new, grad, *states]
        row = [hlo.convert(x, before.dtype) for x, before in zip(row, operands, strict=True)]
        if found_inf is not None:
            skip = hlo.convert(hlo.reshape(found_inf, ()), torch.bool)
            row = [hlo.select(skip, before, x) for x, before in zip(row, operands, strict=True)]
        if grad_scale is None:
            row[1] = operands[1]
        rows.append(row)
    return [[row[i] for row in rows] for i in range(len(old))]


@lower(aten._fused_sgd, dynamic="weight_decay momentum lr dampening")
@lower(aten._fused_sgd.tensor_lr, dynamic="weight_decay momentum dampening")
def _sgd(
    self: Values,
    grads: Values,
    momentum_buffer_list: Values,
    weight_decay: Number,
    momentum: Number,
    lr: Number,
    dampening: Number,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Value | None,
    found_inf: Value | None,
) -> list[Values]:
    def step(param: Value, grad: Value, *state: Value) -> Sequence[Value]:
        grad = hlo.add(grad, _times(weight_decay, param))
        if not state:
            return [hlo.subtract(param, _times(lr, grad))]
        buffer = grad
        if not is_first_step:
            buffer = hlo.add(_times(momentum, state[0]), _times(_one_minus(dampening), grad))
        descent = hlo.add(grad, _times(momentum, buffer)) if nesterov else buffer
        return [hlo.subtract(param, _times(lr, descent)), buffer]

    states = [momentum_buffer_list] if momentum_buffer_list else []
    return _updated([self, grads, *states], step, maximize, grad_scale, found_inf)


def _adam(decoupled: bool) -> Callable[..., list[Values]]:
    """Adam; with decoupled weight decay, AdamW."""

    def lowered(
        self: Values,
        grads: Values,
        exp_avgs: Values,
        exp_avg_sqs: Values,
        max_exp_avg_sqs: Values,
        state_steps: Values,
        lr: Number,
        beta1: Number,
        beta2: Number,
        weight_decay: Number,
        eps: Number,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Value | None,
        found_inf: Value | None,
    ) -> list[Values]:
        counts = iter(state_steps)

        def step(param: Value, grad: Value, average: Value, square: Value, *best: Value) -> Values:
            count = next(counts)
            decay = _times(weight_decay, param)
            if decoupled:
                param = hlo.subtract(param, _times(lr, decay))
            else:
                grad = hlo.add(grad, decay)
            average = e.lerp(average, grad, like(_one_minus(beta1), grad))
            added = hlo.multiply(_times(_one_minus(beta2), grad), grad)
            square = hlo.add(_times(beta2, square), added)
            states = [average, square, *(hlo.maximum(b, square) for b in best)]
            bias1, bias2 = (_one_minus_power(b, count, param.dtype) for b in (beta1, beta2))
            root = hlo.divide(hlo.sqrt(states[-1]), like(hlo.sqrt(bias2), param))
            descent = hlo.divide(average, hlo.add(root, like(eps, root)))
            size = hlo.divide(like(lr, bias1), bias1)
            return [hlo.subtract(param, _times(size, descent)), *states]

        old = [self, grads, exp_avgs, exp_avg_sqs, *([max_exp_avg_sqs] if amsgrad else [])]
        return _updated(old, step, maximize, grad_scale, found_inf)

    return lowered


for packet, decoupled in ((aten._fused_adam, False), (aten._fused_adamw, True)):
    lower(packet.default, _adam(decoupled), dynamic="lr beta1 beta2 weight_decay eps")
    lower(packet.tensor_lr, _adam(decoupled), dynamic="beta1 beta2 weight_decay eps")
