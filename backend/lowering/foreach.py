"""Ops over lists of tensors: `_foreach_add.List` is the row of `add.Tensor`, one list at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._ops import OpOverload

from ..registry import TABLE, Aval, lower
from . import creation, matmul, pointwise, reduction  # noqa: F401  the rows of the elements

aten = torch.ops.aten

# Which overload takes the elements, by what the list op's overload says of its last argument.
_OVERLOADS = {
    "default": ("default",),
    "List": ("Tensor", "Tensor_Tensor", "default"),
    "Tensor": ("Tensor", "default"),
    "Scalar": ("Tensor_Scalar", "Tensor", "default"),
    "ScalarList": ("Tensor_Scalar", "Tensor", "default"),
    "ScalarAndTensor": ("Scalar",),
}
_OTHER_NAMES = {"norm": "linalg_vector_norm"}
# Left to torch's composites: factors in a tensor on the host; elements without a row.
_COMPOSITE = {
    aten._foreach_addcdiv.Tensor,
    aten._foreach_addcmul.Tensor,
    aten._foreach_powsum.Scalar,
}


def element_of(op: OpOverload) -> OpOverload:
    """The op that a list op applies to each element."""
    stem = op._schema.name.removeprefix("aten::_foreach_")
    packet = getattr(aten, _OTHER_NAMES.get(stem, stem))
    for name in _OVERLOADS[op._overloadname]:
        if getattr(packet, name, None) in TABLE:
            return getattr(packet, name)
    raise KeyError(f"{op}: no row for its elements among the overloads of {packet}")


def renaming(op: OpOverload, element: OpOverload) -> dict[str, str]:
    """The element's name of each argument: the same name, else the one at the same place."""
    names = [argument.name for argument in element._schema.arguments]
    given = [argument.name for argument in op._schema.arguments]
    return {name: name if name in names else names[i] for i, name in enumerate(given)}


def over_lists(op: OpOverload, element: OpOverload) -> Callable:
    """The element's row, applied to every list in step; what is not a list is shared."""
    names = renaming(op, element)
    defaults = {a.name: a.default_value for a in element._schema.arguments if a.has_default_value()}

    def lowered(*, aval: Aval | tuple[Aval, ...], **given: object) -> list[object]:
        avals = (aval,) if isinstance(aval, Aval) else aval
        results: list[object] = []
        for i, each in enumerate(avals):
            arguments = {
                names[k]: v[i] if isinstance(v, (list, tuple)) else v for k, v in given.items()
            }
            results.append(TABLE[element](defaults | arguments, {"aval": each}))
        return results

    return lowered


def _register(op: OpOverload) -> None:
    element = element_of(op)
    names = renaming(op, element)
    tensors = {a.name for a in element._schema.arguments if "Tensor" in str(a.type)}
    at_run_time = tensors | TABLE[element].dynamic
    numbers = (a.name for a in op._schema.arguments if "number" in str(a.type))
    dynamic = " ".join(name for name in numbers if names[name] in at_run_time)
    lower(op, over_lists(op, element), dynamic=dynamic)


def _list_ops() -> list[OpOverload]:
    """Every `_foreach_` overload that writes to none of its arguments."""
    found = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if name.startswith("aten::_foreach_"):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            op = getattr(getattr(aten, packet), overload or "default")
            if not op._schema.is_mutable and op not in _COMPOSITE:
                found.append(op)
    return found


for op in _list_ops():
    _register(op)
