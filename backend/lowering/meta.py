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


_library.impl("convolution_overrideable", lambda *arguments: aten.convolution(*arguments))
_library.impl("convolution_backward_overrideable", _convolution_backward)
for _step in (
    "_fused_sgd_",
    "_fused_sgd_.tensor_lr",
    "_fused_adam_.tensor_lr",
    "_fused_adamw_.tensor_lr",
):
    _library.impl(_step, lambda *_, **__: None)
