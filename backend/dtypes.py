"""The one dtype table: torch dtype, StableHLO element type, numpy dtype."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
import torch


class Row(NamedTuple):
    torch: torch.dtype
    hlo: str
    numpy: np.dtype


TABLE: tuple[Row, ...] = (
    Row(torch.bool, "i1", np.dtype(np.bool_)),
    Row(torch.uint8, "ui8", np.dtype(np.uint8)),
    Row(torch.uint16, "ui16", np.dtype(np.uint16)),
    Row(torch.uint32, "ui32", np.dtype(np.uint32)),
    Row(torch.uint64, "ui64", np.dtype(np.uint64)),
    Row(torch.int8, "i8", np.dtype(np.int8)),
    Row(torch.int16, "i16", np.dtype(np.int16)),
    Row(torch.int32, "i32", np.dtype(np.int32)),
    Row(torch.int64, "i64", np.dtype(np.int64)),
    Row(torch.float16, "f16", np.dtype(np.float16)),
    Row(torch.bfloat16, "bf16", np.dtype(ml_dtypes.bfloat16)),
    Row(torch.float32, "f32", np.dtype(np.float32)),
    Row(torch.float64, "f64", np.dtype(np.float64)),
    Row(torch.complex64, "complex<f32>", np.dtype(np.complex64)),
    Row(torch.complex128, "complex<f64>", np.dtype(np.complex128)),
    Row(torch.float8_e4m3fn, "f8E4M3FN", np.dtype(ml_dtypes.float8_e4m3fn)),
    Row(torch.float8_e5m2, "f8E5M2", np.dtype(ml_dtypes.float8_e5m2)),
    Row(torch.float8_e4m3fnuz, "f8E4M3FNUZ", np.dtype(ml_dtypes.float8_e4m3fnuz)),
    Row(torch.float8_e5m2fnuz, "f8E5M2FNUZ", np.dtype(ml_dtypes.float8_e5m2fnuz)),
    Row(torch.float8_e8m0fnu, "f8E8M0FNU", np.dtype(ml_dtypes.float8_e8m0fnu)),
)

HLO: dict[torch.dtype, str] = {row.torch: row.hlo for row in TABLE}
NUMPY: dict[torch.dtype, np.dtype] = {row.torch: row.numpy for row in TABLE}
FROM_NUMPY: dict[np.dtype, torch.dtype] = {row.numpy: row.torch for row in TABLE}

# What arithmetic on a narrow float is computed in before it is rounded once (torch's opmath type).
OPMATH: dict[torch.dtype, torch.dtype] = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}


def real_of(dtype: torch.dtype) -> torch.dtype:
    """The component dtype of a complex dtype; any other dtype is returned as it is."""
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)


def complex_of(dtype: torch.dtype) -> torch.dtype:
    """The complex dtype whose components have the given float dtype."""
    return {torch.float32: torch.complex64, torch.float64: torch.complex128}.get(dtype, dtype)


def is_unsigned(dtype: torch.dtype) -> bool:
    return dtype in (torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def is_integer(dtype: torch.dtype) -> bool:
    """True for integer dtypes; bool is not one."""
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
