"""The opt-in CPU fallback: TPU_KERNELS_CPU_FALLBACK=1. Counted, and announced once per op."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from tpu_kernels.errors import Unsupported

from . import statistics


def kernel(op: OpOverload) -> Callable:
    """A device kernel for `op` that computes on the CPU and copies both ways."""
    arguments = op._schema.arguments
    if any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns):
        raise Unsupported(str(op), "it returns a view, which the CPU fallback cannot give")
    warned = False

    def run(*given: object) -> object:
        nonlocal warned
        statistics.count_fallback()
        if not warned:
            warned = True
            warnings.warn(
                f"{op} has no lowering for the tpu device: it runs on the CPU "
                "(TPU_KERNELS_CPU_FALLBACK=1)",
                stacklevel=2,
            )
        named = {a.name: value for a, value in zip(arguments, given, strict=True)}
        place = _device_of(given)
        hosted = tree_map(_to_host, named)
        result = op(
            *(hosted[a.name] for a in arguments if not a.kwarg_only),
            **{a.name: hosted[a.name] for a in arguments if a.kwarg_only},
        )
        for argument in arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                tree_map(_copy_back, named[argument.name], hosted[argument.name])
        return _results(op, named, result, place)

    return run


def _device_of(given: tuple) -> torch.device:
    found: list[torch.device] = []
    tree_map(lambda x: found.append(x.device) if _on_device(x) else None, given)
    return found[0] if found else torch.device("tpu")


def _on_device(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == "tpu"


def _to_host(x: object) -> object:
    return x.cpu() if isinstance(x, torch.Tensor) and x.device.type == "tpu" else x


def _copy_back(target: object, value: object) -> None:
    if isinstance(target, torch.Tensor) and isinstance(value, torch.Tensor):
        if target.shape != value.shape:
            target.resize_(value.shape)
        target.copy_(value)


def _results(op: OpOverload, named: dict, result: object, place: torch.device) -> object:
    """Results on the device; a returned argument is that argument."""
    values = result if len(op._schema.returns) > 1 else (result,)
    out: list[object] = []
    for declared, value in zip(op._schema.returns, values or (), strict=False):  # type: ignore[call-overload]
        if declared.alias_info is None:
            out.append(tree_map(lambda x: x.to(place) if isinstance(x, torch.Tensor) else x, value))
            continue
        wanted = declared.alias_info.before_set
        out += [
            named[a.name]
            for a in op._schema.arguments
            if a.alias_info is not None and a.alias_info.before_set == wanted
        ]
    return tuple(out) if len(op._schema.returns) > 1 else (out[0] if out else None)
