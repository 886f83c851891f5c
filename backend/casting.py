"""torch's rule for in-place ops: the result type must be castable to the written tensor's dtype.

The Meta kernels of in-place ops do not check it, so it is asked of the functional op.
"""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_map

from .program import ScalarOperand, TensorOperand
from .registry import Form

_NAMES = {
    torch.bool: "Bool",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}


def check(op: torch._ops.OpOverload, form: Form, arguments: dict[str, object]) -> None:
    """Raise RuntimeError, in torch's words, where an in-place result cannot be cast back."""
    if op is form.functional or len(form.writes) != 1:
        return
    written = op._schema.arguments[form.writes[0]]
    target = arguments[written.name]
    if written.is_out or not isinstance(target, TensorOperand):
        return
    result = _functional_dtype(form.functional, arguments)
    if result is not None and not torch.can_cast(result, target.dtype):
        raise RuntimeError(
            f"result type {_NAMES.get(result, result)} can't be cast to the desired output type "
            f"{_NAMES.get(target.dtype, target.dtype)}"
        )


def _functional_dtype(
    op: torch._ops.OpOverload, arguments: dict[str, object]
) -> torch.dtype | None:
    """dtype of the functional op's one result by its Meta kernel; None if it has no such result."""
    given = tree_map(_stand_in, arguments, is_leaf=lambda x: isinstance(x, tuple))
    schema = op._schema.arguments
    positional = [given[a.name] for a in schema if not a.kwarg_only and a.name in given]
    keywords = {a.name: given[a.name] for a in schema if a.kwarg_only and a.name in given}
    try:
        result = op(*positional, **keywords)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return None
    return result.dtype if isinstance(result, torch.Tensor) else None


def _stand_in(x: object) -> object:
    if isinstance(x, TensorOperand):
        return torch.empty_strided(x.sizes, x.strides, dtype=x.dtype, device="meta")
    if isinstance(x, ScalarOperand):
        if x.weak:
            return 1j if x.dtype.is_complex else 1.0 if x.dtype.is_floating_point else 1
        return torch.empty((), dtype=x.dtype, device="meta")
    return x
