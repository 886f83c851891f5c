"""Shape rules for the ops that torch has none for: their Meta kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

aten = torch.ops.aten
_library = torch.library.Library("aten", "IMPL", "Meta")  # kernels live as long as this object


def _convolution(input: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    """channels_last where an operand is, as torch's CPU kernels have it."""
    result = aten.convolution(input, weight, *rest)
    if input.ndim < 4:
        return result
    last = torch.channels_last if input.ndim == 4 else torch.channels_last_3d
    keeps = last in (suggest_memory_format(input), suggest_memory_format(weight))
    return result.to(memory_format=last) if keeps else result


def _convolution_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, *rest: Any
) -> tuple[Tensor | None, ...]:
    """Each gradient lies in memory as its operand does."""
    asked = rest[-1]
    return (
        torch.empty_like(input) if asked[0] else None,
        torch.empty_like(weight) if asked[1] else None,
        grad_output.new_empty(grad_output.shape[1]) if asked[2] else None,
    )


def _gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(hx), hx.new_empty(hx.shape[0], 5 * hx.shape[1])


def _gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor | None, ...]:
    batch, hidden = grad_hy.shape
    gates = [grad_hy.new_empty(batch, 3 * hidden) for _ in range(2)]
    biases = [grad_hy.new_empty(3 * hidden) if has_bias else None for _ in range(2)]
    return *gates, torch.empty_like(grad_hy), *biases


def _like_self(grad_output: Tensor, self: Tensor, *rest: object) -> Tensor:
    return torch.empty_like(self, memory_format=torch.contiguous_format)


_library.impl("convolution_overrideable", _convolution)
_library.impl("convolution_backward_overrideable", _convolution_backward)
for _step in (
    "_fused_sgd_",
    "_fused_sgd_.tensor_lr",
    "_fused_adam_.tensor_lr",
    "_fused_adamw_.tensor_lr",
):
    _library.impl(_step, lambda *_, **__: None)
_library.impl("_thnn_fused_gru_cell", _gru_cell)
_library.impl("_thnn_fused_gru_cell_backward", _gru_cell_backward)
_library.impl("multi_margin_loss_backward", _like_self)
_library.impl("multilabel_margin_loss_backward", _like_self)
