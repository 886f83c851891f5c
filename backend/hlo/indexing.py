"""Gather and scatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .core import Value, builder, emit_generic, i64s


def gather(
    operand: Value,
    indices: Value,
    *,
    offset_dims: Sequence[int],
    collapsed: Sequence[int],
    start_index_map: Sequence[int],
    index_vector_dim: int,
    slice_sizes: Sequence[int],
    operand_batching: Sequence[int] = (),
    indices_batching: Sequence[int] = (),
    sorted_: bool = False,
) -> Value:
    """StableHLO gather; start indices are clamped so that each slice fits."""
    batch = [n for i, n in enumerate(indices.shape) if i != index_vector_dim]
    kept = [
        n for i, n in enumerate(slice_sizes) if i not in collapsed and i not in operand_batching
    ]
    rank = len(batch) + len(offset_dims)
    batches, offsets = iter(batch), iter(kept)
    shape = [next(offsets) if i in offset_dims else next(batches) for i in range(rank)]
    numbers = (
        f"offset_dims = {list(offset_dims)}, collapsed_slice_dims = {list(collapsed)}, "
        f"operand_batching_dims = {list(operand_batching)}, "
        f"start_indices_batching_dims = {list(indices_batching)}, "
        f"start_index_map = {list(start_index_map)}, index_vector_dim = {index_vector_dim}"
    )
    attributes = (
        f"dimension_numbers = #stablehlo.gather<{numbers}>, slice_sizes = {i64s(slice_sizes)}, "
        f"indices_are_sorted = {str(sorted_).lower()}"
    )
    result = [(shape, operand.dtype)]
    return emit_generic("stablehlo.gather", [operand, indices], result, attributes)[0]


def scatter(
    operand: Value,
    indices: Value,
    updates: Value,
    body: Callable,
    *,
    update_window_dims: Sequence[int],
    inserted: Sequence[int],
    scatter_dims_to_operand_dims: Sequence[int],
    index_vector_dim: int,
    operand_batching: Sequence[int] = (),
    indices_batching: Sequence[int] = (),
    sorted_: bool = False,
    unique: bool = False,
) -> Value:
    """StableHLO scatter; body(old, update) combines; updates that do not fit are dropped."""
    numbers = (
        f"update_window_dims = {list(update_window_dims)}, "
        f"inserted_window_dims = {list(inserted)}, "
        f"input_batching_dims = {list(operand_batching)}, "
        f"scatter_indices_batching_dims = {list(indices_batching)}, "
        f"scatter_dims_to_operand_dims = {list(scatter_dims_to_operand_dims)}, "
        f"index_vector_dim = {index_vector_dim}"
    )
    attributes = (
        f"scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, "
        f"indices_are_sorted = {str(sorted_).lower()}, unique_indices = {str(unique).lower()}"
    )
    region = builder().region([((), operand.dtype)] * 2, body)
    operands = [operand, indices, updates]
    result = [(operand.shape, operand.dtype)]
    return emit_generic("stablehlo.scatter", operands, result, attributes, [region])[0]


def replace(old: Value, update: Value) -> Value:
    """The scatter body that overwrites."""
    return update
