"""Registers with torch's dispatcher every op that the lowering table serves."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from . import bounds, registry

# Rows for graphs, where torch's own kernel comes back to the core: copy_ after it has decided
# between devices, convolution as convolution_overrideable, whose Meta kernel is ours
# (lowering/meta.py) and keeps channels_last.
_PLUMBING = frozenset(
    {
        torch.ops.aten.copy_.default,
        torch.ops.aten.convolution.default,
        torch.ops.aten.convolution_backward.default,
    }
)

# Writing one value twice to the same memory gives that value, so torch does not check these.
_aten = torch.ops.aten
_MAY_OVERLAP = frozenset(
    {
        _aten.fill.Scalar,
        _aten.fill.Tensor,
        _aten.zero.default,
        _aten.masked_fill.Scalar,
        _aten.masked_fill.Tensor,
        _aten.index_fill.int_Scalar,
        _aten.index_fill.int_Tensor,
    }
)

_libraries: dict[str, torch.library.Library] = {}


def register(core: Any) -> None:
    """The recorder for rows and their variants, Python kernels for compositions."""
    from . import lowering  # noqa: F401  fills the table

    for op, form in registry.variants():
        if _is_ours_to_register(op):
            core.register_operation(
                op.name(),
                _dynamic(op, form),
                form.functional in bounds.BOUNDS,
                form.functional in _MAY_OVERLAP,
            )
    for op, composition in registry.COMPOSED.items():
        if composition.when is None:
            _library(op.namespace).impl(_local(op), _by_name(op, composition), "PrivateUse1")
        else:
            names = [argument.name for argument in op._schema.arguments]
            core.compose(
                op.name(),
                lambda *args, _n=names, _f=composition.when: _f(**dict(zip(_n, args, strict=True))),
                lambda *args, _n=names, _f=composition.function: _f(
                    **dict(zip(_n, args, strict=True))
                ),
            )


def _is_ours_to_register(op: OpOverload) -> bool:
    """Composites stay torch's: a kernel of ours would hide their autograd, and an op with both a
    tensor and a device argument may be asked for a result on another device."""
    if op in _PLUMBING:
        return False
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if has(op.name(), "CompositeImplicitAutograd") and not has(op.name(), "Autograd"):
        return False
    types = [str(argument.type) for argument in op._schema.arguments]
    names = [argument.name for argument in op._schema.arguments]
    return not ("device" in names and any("Tensor" in kind for kind in types))


def _dynamic(op: OpOverload, form: registry.Form) -> list[bool]:
    names = registry.TABLE[form.functional].dynamic
    return [argument.name in names for argument in op._schema.arguments]


def _library(namespace: str) -> torch.library.Library:
    if namespace not in _libraries:
        _libraries[namespace] = torch.library.Library(namespace, "IMPL")
    return _libraries[namespace]


def _local(op: OpOverload) -> str:
    return op.name().partition("::")[2]


def _by_name(op: OpOverload, composition: registry.Composition) -> Any:
    names = [argument.name for argument in op._schema.arguments]

    def kernel(*args: object, **kwargs: object) -> object:
        return composition.function(**dict(zip(names, args, strict=False)), **kwargs)

    return kernel
