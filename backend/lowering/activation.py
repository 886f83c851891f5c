"""Activation functions and their derivatives."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import hlo
from ..hlo import Value
from ..promotion import pointwise
from ..registry import decompose, lower

aten = torch.ops.aten


def _relu(x: Value) -> Value:
    return hlo.maximum(x, hlo.zeros_like(x))


lower(aten.relu, pointwise(_relu))

decompose(
    aten.celu,
    aten.elu,
    aten.gelu,
    aten.glu,
    aten.hardshrink,
    aten.hardsigmoid,
    aten.hardswish,
    aten.hardtanh,
    aten.leaky_relu,
    aten.log_sigmoid_forward,
    aten.mish,
    aten.silu,
    aten.softplus,
    aten.softshrink,
    aten.threshold,
    aten._prelu_kernel,
)

decompose(
    aten.elu_backward,
    aten.gelu_backward,
    aten.glu_backward,
    aten.hardsigmoid_backward,
    aten.hardswish_backward,
    aten.hardtanh_backward,
    aten.leaky_relu_backward,
    aten.log_sigmoid_backward,
    aten.logit_backward,
    aten.mish_backward,
    aten.rrelu_with_noise_backward,
    aten.sigmoid_backward,
    aten.silu_backward,
    aten.softplus_backward,
    aten.tanh_backward,
    aten.threshold_backward,
    aten._prelu_kernel_backward,
)


def _shrink_backward(grad_output: Tensor, self: Tensor, lambd: float) -> Tensor:
    return torch.where((self >= -lambd) & (self <= lambd), 0, grad_output)


decompose(aten.hardshrink_backward, aten.softshrink_backward, using=_shrink_backward)
