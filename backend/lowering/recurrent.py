"""LSTM and GRU cells: the ops through which torch runs recurrent layers on a device like ours.

The workspace holds what the gradient needs: the activated gates, side by side.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._decomp.decompositions import pw_cast_for_opmath

from ..registry import compose, decompose

aten = torch.ops.aten


def _biased(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


@pw_cast_for_opmath
def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """h and c, [b, n], from gates [b, 4n] in the order input, forget, cell, output."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def lstm_cell_without_bias(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None,
    hidden_bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """torch's Meta kernel needs biases."""
    zero = input_gates.new_zeros(input_gates.shape[1])
    return aten._thnn_fused_lstm_cell(input_gates, hidden_gates, cx, zero, zero)


@pw_cast_for_opmath
def lstm_cell_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of the gates, of cx and of a bias."""
    i, f, g, o = workspace.chunk(4, 1)
    grad_h = torch.zeros_like(cx) if grad_hy is None else grad_hy
    grad_c = torch.zeros_like(cx) if grad_cy is None else grad_cy
    tanh = cy.tanh()
    grad_c = grad_c + grad_h * o * (1 - tanh * tanh)
    parts = [
        grad_c * g * i * (1 - i),
        grad_c * cx * f * (1 - f),
        grad_c * i * (1 - g * g),
        grad_h * tanh * o * (1 - o),
    ]
    grad_gates = torch.cat(parts, 1)
    return grad_gates, grad_c * f, grad_gates.sum(0) if has_bias else None


@pw_cast_for_opmath
def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """h, [b, n], from gates [b, 3n] in the order reset, update, new."""
    from_input = _biased(input_gates, input_bias).chunk(3, 1)
    from_hidden = _biased(hidden_gates, hidden_bias).chunk(3, 1)
    reset = (from_input[0] + from_hidden[0]).sigmoid()
    update = (from_input[1] + from_hidden[1]).sigmoid()
    new = (from_input[2] + reset * from_hidden[2]).tanh()
    workspace = torch.cat([reset, update, new, hx, from_hidden[2]], 1)
    return new + update * (hx - new), workspace


@pw_cast_for_opmath
def gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of both kinds of gates, of hx and of both biases."""
    reset, update, new, hx, hidden = workspace.chunk(5, 1)
    grad_update = grad_hy * (hx - new) * update * (1 - update)
    grad_new = grad_hy * (1 - update) * (1 - new * new)
    grad_reset = grad_new * hidden * reset * (1 - reset)
    by_input = torch.cat([grad_reset, grad_update, grad_new], 1)
    by_hidden = torch.cat([grad_reset, grad_update, grad_new * reset], 1)
    biases = (by_input.sum(0), by_hidden.sum(0)) if has_bias else (None, None)
    return by_input, by_hidden, grad_hy * update, *biases


decompose(aten._thnn_fused_lstm_cell, using=lstm_cell)
compose(
    aten._thnn_fused_lstm_cell,
    lstm_cell_without_bias,
    when=lambda input_bias, **_: input_bias is None,
)
decompose(aten._thnn_fused_lstm_cell_backward_impl, using=lstm_cell_backward)
decompose(aten._thnn_fused_gru_cell, using=gru_cell)
decompose(aten._thnn_fused_gru_cell_backward, using=gru_cell_backward)
