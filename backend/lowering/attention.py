"""The fused transformer ops that torch.nn calls for inference, in terms of plain ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..registry import compose, decompose

aten = torch.ops.aten

_SOURCE, _PADDING = 0, 1  # what the two dimensions of a mask are: [t, s] or [b, s]


def _masked(scores: Tensor, mask: Tensor | None, mask_type: int | None) -> Tensor:
    """Minus infinity where a boolean mask is set. scores: [b, h, t, s]."""
    if mask is None:
        return scores
    mask = mask.to(torch.bool)
    if mask_type == _SOURCE and mask.ndim == 2:
        mask = mask[None, None]
    elif mask_type == _PADDING and mask.ndim == 2:
        mask = mask[:, None, None]
    return scores.masked_fill(mask, float("-inf"))


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of [b, t, d] over [b, s, d], and its weights or an empty tensor."""
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    q, k, v = (
        F.linear(x, w, b).unflatten(2, (num_head, -1)).transpose(1, 2)
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
    attention = _masked(scores, mask, mask_type).softmax(-1)
    result = F.linear((attention @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return result, query.new_empty(0)
    return result, attention.mean(1) if average_attn_weights else attention


def transformer_encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """src: [b, t, d]."""

    def attend(x: Tensor) -> Tensor:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return multi_head_attention(
            x, x, x, embed_dim, num_heads, *projections, mask, False, mask_type=mask_type
        )[0]

    def feed_forward(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else hidden.relu(), ffn_weight_2, ffn_bias_2)

    def norm_1(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(norm_1(src))
        return x + feed_forward(norm_2(x))
    x = norm_1(src + attend(src))
    return norm_2(x + feed_forward(x))


decompose(aten._native_multi_head_attention, using=multi_head_attention)
decompose(aten._transformer_encoder_layer_fwd, using=transformer_encoder_layer)


@compose(aten._nested_tensor_from_mask_left_aligned)
def _left_aligned(t: Tensor, mask: Tensor) -> bool:
    """No: there are no nested tensors here, and with this answer torch.nn takes its dense path."""
    return False
