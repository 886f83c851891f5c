"""Runs torch code symbolically: ops on meta tensors, their values in StableHLO.

A meta tensor stands for a device tensor: its storage is known by address, the storage's value is
an hlo value, and a view is geometry on it, exactly as on the device. So a decomposition may take
views and mutate them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from tpu_kernels.errors import Unsupported

from . import hlo, registry, views
from .hlo import Shape, Value
from .registry import Aval

_aten = torch.ops.aten
# Ops that make or reshape a storage without computing anything; its value is zero until written.
_STORAGE_ONLY = frozenset(
    {
        _aten.empty.memory_format,
        _aten.empty_strided.default,
        _aten.empty_like.default,
        _aten.new_empty.default,
        _aten.new_empty_strided.default,
        _aten.set_.source_Storage_storage_offset,
    }
)


def aval_of(tensor: torch.Tensor) -> Aval:
    return Aval(tuple(tensor.shape), tensor.dtype, tuple(tensor.stride()))


def geometry(tensor: torch.Tensor) -> tuple[Shape, Shape, int]:
    return tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())


class Interpreter(TorchDispatchMode):
    """Emits StableHLO for every op called on meta tensors while it is the active mode."""

    def __init__(self, rng: object = None) -> None:
        super().__init__()
        self.rng = rng
        self.bases: dict[int, Value] = {}
        self.alive: list[torch.UntypedStorage] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import all of torch._dynamo to keep it out of the mode

    # Tensors and values.

    def tensor(self, value: Value) -> torch.Tensor:
        """A new contiguous meta tensor that stands for `value`."""
        with _disable_current_modes():
            result = torch.empty(value.shape, dtype=value.dtype, device="meta")
        self.bind(result, value)
        return result

    def bind(self, tensor: torch.Tensor, value: Value) -> None:
        """Give a freshly made tensor its value; the storage keeps it in memory order."""
        storage = tensor.untyped_storage()
        order = memory_order(tensor.shape, tensor.stride())
        if order is None:
            size = storage.nbytes() // tensor.element_size()
            base = hlo.constant(0, tensor.dtype, (size,))
            self.bases[storage._cdata] = views.write(base, value, tensor.dtype, *geometry(tensor))
        else:
            self.bases[storage._cdata] = hlo.transpose(value, order)
        self.alive.append(storage)

    def base_of_new(self, tensor: torch.Tensor) -> None:
        """A storage that nothing has been written to is zero."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self.bases:
            size = storage.nbytes() // tensor.element_size()
            self.bases[storage._cdata] = hlo.constant(0, tensor.dtype, (size,))
            self.alive.append(storage)

    def base(self, tensor: torch.Tensor) -> Value:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.bases:
            if storage.nbytes():
                raise AssertionError(f"no value is known of a meta tensor {aval_of(tensor)}")
            self.base_of_new(tensor)
        return self.bases[storage._cdata]

    def read(self, tensor: torch.Tensor) -> Value:
        if tensor.device.type != "meta":
            return _host_value(tensor)
        return views.read(self.base(tensor), tensor.dtype, *geometry(tensor))

    def write(self, tensor: torch.Tensor, value: Value) -> None:
        value = hlo.broadcast(hlo.convert(value, tensor.dtype), tensor.shape)
        base = views.write(self.base(tensor), value, tensor.dtype, *geometry(tensor))
        self.bases[tensor.untyped_storage()._cdata] = base

    # Ops.

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        if torch.Tag.inplace_view in func.tags or func.namespace == "prim":
            return func(*args, **kwargs)
        if _is_view(func):
            return func(*args, **kwargs)
        args, kwargs = tree_map(_to_meta_device, (args, kwargs))
        if func in _STORAGE_ONLY:
            outputs = func(*args, **kwargs)
            self.base_of_new(outputs)
            return outputs
        form = registry.form_of(func)
        if form is None:
            return self.expand(func, args, kwargs)
        return self.run(func, form, args, kwargs)

    def expand(self, func: OpOverload, args: Sequence, kwargs: dict) -> object:
        """An op without a row: what it is composed of, else refuse."""
        from torch._decomp import decomposition_table

        with self:
            if func in decomposition_table:
                return decomposition_table[func](*args, **kwargs)
            result = func.decompose(*args, **kwargs)
        if result is NotImplemented:
            raise Unsupported(str(func), "it has no lowering and no decomposition")
        return result

    def run(self, func: OpOverload, form: registry.Form, args: Sequence, kwargs: dict) -> object:
        """Infer with the Meta kernel, lower, and attach values to the results."""
        named = bind_schema(func, args, kwargs)
        values = tree_map(lambda x: self.read(x) if isinstance(x, torch.Tensor) else x, named)
        outputs = func(*args, **kwargs)
        fresh = fresh_tensors(func, outputs)
        names = [func._schema.arguments[i].name for i in form.writes]
        targets = [t for n in names for t in _as_list(named[n]) if t is not None]
        avals = [aval_of(t) for t in (*fresh, *targets)]
        results = lower_call(form.functional, values, avals, self.rng)
        for tensor, value in zip(fresh, results[: len(fresh)], strict=True):
            self.bind(tensor, value)
        for target, value in zip(targets, results[len(fresh) :], strict=True):
            self.write(target, value)
        return outputs


def lower_call(op: OpOverload, arguments: dict, avals: list[Aval], rng: object) -> list[Value]:
    """Apply the row of a functional op; results are checked against `avals`."""
    aval = avals[0] if len(avals) == 1 else tuple(avals)
    row = registry.TABLE[op]
    results = tree_flatten(row(arguments, {"aval": aval, "rng": rng}))[0]
    results = [value for value in results if value is not None]  # what output_mask left out
    if len(results) != len(avals):
        raise AssertionError(f"{op}: lowered to {len(results)} results, torch has {len(avals)}")
    for value, expected in zip(results, avals, strict=True):
        if value.shape != tuple(expected.shape):
            raise AssertionError(f"{op}: lowered to {value.type}, torch says {expected}")
    return [hlo.convert(v, expected.dtype) for v, expected in zip(results, avals, strict=True)]


def fresh_tensors(op: OpOverload, outputs: object) -> list[torch.Tensor]:
    """The returned tensors that are new, not aliases of an argument."""
    returns = op._schema.returns
    values = (outputs,) if len(returns) == 1 else tuple(outputs or ())  # type: ignore[arg-type]
    new = [v for v, r in zip(values, returns, strict=True) if r.alias_info is None]
    return [t for t in tree_flatten(new)[0] if isinstance(t, torch.Tensor)]


def run_decomposition(op: OpOverload, body: Callable, given: dict) -> list[Value]:
    """Lower `op` by running `body`, torch code, on its arguments."""
    interpreter = Interpreter()
    wrapped = tree_map(
        lambda x: interpreter.tensor(x) if isinstance(x, Value) else x,
        given,
        is_leaf=lambda x: isinstance(x, Value),
    )
    positional, keywords = [], {}
    for argument in op._schema.arguments:
        if argument.name in wrapped:
            value = wrapped[argument.name]
            if argument.kwarg_only:
                keywords[argument.name] = value
            else:
                positional.append(value)
    with torch.no_grad(), interpreter:
        outputs = body(*positional, **keywords)
    tensors = [t for t in tree_flatten(outputs)[0] if isinstance(t, torch.Tensor)]
    return [interpreter.read(tensor) for tensor in tensors]


def bind_schema(op: OpOverload, args: Sequence, kwargs: dict) -> dict[str, object]:
    """Arguments by name, defaults filled in from the schema."""
    named: dict[str, object] = {}
    for i, argument in enumerate(op._schema.arguments):
        if i < len(args) and not argument.kwarg_only:
            named[argument.name] = args[i]
        elif argument.name in kwargs:
            named[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            named[argument.name] = argument.default_value
    return named


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> list[int] | None:
    """The permutation that sorts a dense tensor's dimensions as they lie in memory, or None."""
    order = sorted((d for d in range(len(shape)) if shape[d] != 1), key=lambda d: -strides[d])
    expected = 1
    for d in reversed(order):
        if strides[d] != expected:
            return None if hlo.numel(shape) else list(range(len(shape)))
        expected *= shape[d]
    ones = iter(d for d in range(len(shape)) if shape[d] == 1)
    dense = iter(order)
    return [next(ones) if shape[d] == 1 else next(dense) for d in range(len(shape))]


def _is_view(op: OpOverload) -> bool:
    """True where a result always shares its operand's storage, not where it only may, as in `to`.

    Those are composite, and reach the interpreter whole from within another op's lowering.
    """
    aliases = [r.alias_info for r in op._schema.returns if r.alias_info is not None]
    if op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        return False
    return bool(aliases) and not any(alias.is_write for alias in aliases)


def _as_list(value: object) -> list:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _to_meta_device(x: object) -> object:
    return torch.device("meta") if isinstance(x, torch.device) else x


def _host_value(tensor: torch.Tensor) -> Value:
    """A CPU scalar inside a decomposition is a Python number in disguise."""
    weak = tensor.ndim == 0
    value = hlo.array(tensor.detach())
    return Value(value.name, value.shape, value.dtype, weak)
