"""Counter-based random bits. The state is an operand: the same state gives the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .core import Value, builder, type_of


def rng_bit_generator(state: Value, shape: Sequence[int], dtype: torch.dtype) -> Value:
    """Uniform random bits of an unsigned dtype from a ui64[2] state (Philox key and counter)."""
    shape = tuple(shape)
    text = (
        f"stablehlo.rng_bit_generator {state.name}, algorithm = PHILOX : "
        f"({state.type}) -> ({state.type}, {type_of(shape, dtype)})"
    )
    return builder().emit(text, (state.shape, state.dtype), (shape, dtype))[1]
