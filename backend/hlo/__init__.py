"""The StableHLO vocabulary: typed values, shape rules, text out.

Functions emit into the current `Builder` (see `building`) and return a `Value`. They are strict:
operands must already agree in shape and dtype, as StableHLO asks. Promotion and broadcasting the
torch way belong to the registry.
"""

from .core import (
    Builder,
    Shape,
    Value,
    array,
    builder,
    building,
    constant,
    emit,
    emit_generic,
    full_like,
    i64s,
    numel,
    type_of,
    zeros_like,
)
from .elementwise import *  # noqa: F403
from .indexing import gather, replace, scatter
from .linear import convolution, dot_general, matmul
from .random import rng_bit_generator
from .reduction import (
    fori,
    highest,
    if_,
    lowest,
    reduce,
    reduce_and,
    reduce_max,
    reduce_min,
    reduce_or,
    reduce_prod,
    reduce_sum,
    reduce_window,
    reduce_xor,
    select_and_scatter,
    sort,
    top_k,
    while_,
)
from .shape import (
    broadcast,
    broadcast_in_dim,
    broadcast_shapes,
    concatenate,
    dynamic_slice,
    dynamic_update_slice,
    expand_dims,
    iota,
    pad,
    pad_zero,
    reshape,
    reverse,
    slice_,
    slice_in_dim,
    squeeze,
    transpose,
)

__all__ = [name for name in dir() if not name.startswith("_")]
