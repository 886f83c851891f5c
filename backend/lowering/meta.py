"""Shape rules for the ops that torch has none for: their Meta kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

aten = torch.ops.aten
_library = torch.library.Library("aten", "IMPL", "Meta")  # kernels live as long as this object


def _convolution_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, *rest: Sequence[int]
) -> tuple[Tensor | None, ...]:
    bias_sizes = [grad_output.shape[1]]
    return aten.convolution_backward(grad_output, input, weight, bias_sizes, *rest)


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


_library.impl("convolution_overrideable", lambda *arguments: aten.convolution(*arguments))
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
