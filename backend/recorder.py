"""The Python half of the recorder: what the C++ core calls on a miss and around a transfer.

Nothing here runs on the hot path except `put`, `put` of changed scalars, and host reads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType

import numpy as np
import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten

from tpu_kernels.errors import Unsupported

from . import bounds, casting, compiler_options, fallback, pjrt, registry, views
from .dtypes import FROM_NUMPY, NUMPY
from .pjrt import consume_with_handlers as consume
from .pjrt import is_ready
from .program import Output, Record, ScalarOperand, TensorOperand, blocks_drawn, module

__all__ = [
    "check_bounds",
    "compile",
    "consume",
    "copy_to_device",
    "describe",
    "host_view",
    "is_ready",
    "marker",
    "offset_rule",
    "put",
    "resize",
    "server",
    "staging",
    "translate",
    "wait",
    "zeros",
]

# Misses.


def find_op(name: str) -> OpOverload:
    """The overload with the dispatcher's name, e.g. "aten::add.Tensor"."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def server(name: str, arguments: tuple) -> Callable | None:
    """What serves an op: None for a row, the CPU if the user allows it; else refuse."""
    op = find_op(name)
    if registry.form_of(op) is not None:
        return None
    if os.environ.get("TPU_KERNELS_CPU_FALLBACK") == "1":
        return fallback.kernel(op)
    raise _unsupported(op, arguments)


def describe(name: str, arguments: tuple, outputs: list) -> tuple[Record, str, int]:
    """The record of a call seen for the first time, where the user made it, and its draws."""
    op = find_op(name)
    form = registry.form_of(op)
    assert form is not None, name
    named: dict[str, object] = {}
    counts = {"ints": 0, "floats": 0}
    for argument, given in zip(op._schema.arguments, arguments, strict=True):
        named[argument.name] = _operand(given, counts)
    casting.check(op, form, named)
    made = tuple(Output(*output) for output in outputs)
    record = Record(op, form, named, made, counts["ints"], counts["floats"])
    if torch.Tag.nondeterministic_seeded in op.tags:
        drawing = Record(op, form, named, made, counts["ints"] + 2, counts["floats"], draws=1)
        draws = blocks_drawn(drawing)
        if draws:
            return drawing, user_location(), draws
    return record, user_location(), 0


def _operand(given: object, counts: dict[str, int]) -> object:
    """An argument as the core describes it: tagged tuples for operands, values as they are."""
    if isinstance(given, list):
        return [_operand(item, counts) for item in given]
    if not isinstance(given, tuple):
        return given
    tag, *rest = given
    if tag == "tensor":
        operand = TensorOperand(*rest)
        if operand.dynamic_offset:
            operand = operand._replace(offset=counts["ints"])
            counts["ints"] += 1
        return operand
    dtype, _, weak = rest
    kind = "floats" if dtype.is_floating_point or dtype.is_complex else "ints"
    slot = counts[kind]
    counts[kind] += 2 if dtype.is_complex else 1
    return ScalarOperand(dtype, slot, weak)


def _unsupported(op: OpOverload, arguments: tuple) -> Unsupported:
    tensors = [x for x in tree_flatten(arguments)[0] if isinstance(x, torch.Tensor)]
    dtypes = ", ".join(dict.fromkeys(str(t.dtype).removeprefix("torch.") for t in tensors))
    return Unsupported(
        f"{op} ({dtypes})",
        "the tpu device has no lowering for it",
        "move its operands to the CPU (.cpu()), set TPU_KERNELS_CPU_FALLBACK=1, or add a lowering "
        "(see tpu_kernels.backend)",
    )


def compile(records: list[Record], live: tuple, donated: tuple, device: int) -> tuple:
    """Lower and compile a trace: (execute, result handlers, inputs, takes ints, takes floats)."""
    lowered = module(records, live, donated)
    options = compiler_options.current(pjrt.client().platform)
    program = pjrt.client().compile(lowered.text, device, options)
    return (
        program.execute_sharded,
        program.handlers,
        tuple(lowered.inputs),
        lowered.takes_ints,
        lowered.takes_floats,
    )


def offset_rule(
    base_dtype: torch.dtype, base: tuple, dtype: torch.dtype, sizes: tuple, strides: tuple
) -> object:
    return views.offset_rule(base, base_dtype, dtype, sizes, strides)


def check_bounds(name: str, arguments: tuple) -> None:
    """Debug mode: raise for an index out of bounds, with torch's words."""
    op = find_op(name)
    names = [argument.name for argument in op._schema.arguments]
    form = registry.form_of(op)
    bounds.check(form.functional if form else op, dict(zip(names, arguments, strict=True)))


# Values.

_MOST_DIMENSIONS = 64  # of a numpy array


def put(memory: memoryview, dtype: torch.dtype, sizes: tuple, device: int) -> object:
    """A device array with a copy of host memory, row-major."""
    if len(sizes) > _MOST_DIMENSIONS:
        raise RuntimeError(
            f"tpu: only tensors with up to {_MOST_DIMENSIONS} dims are supported, got {len(sizes)}"
        )
    array = np.frombuffer(memory, NUMPY[dtype]).reshape(sizes)
    return pjrt.client().put(array, device)


def staging(dtype: torch.dtype, count: int, device: int) -> object:
    """(array, address of its host memory) where the core may write that memory, else None."""
    return pjrt.client().staging(NUMPY[dtype], count, device)


def zeros(dtype: torch.dtype, sizes: tuple, device: int) -> object:
    return pjrt.client().put(np.zeros(sizes, NUMPY[dtype]), device)


def host_view(array: object, op: str, where: str) -> object:
    """The bytes of an array on the host: an address, or an object with the buffer protocol."""
    client = pjrt.client()
    try:
        if client.platform == "cpu" and not client.is_plugin:
            return client.host_pointer(array)
        return np.ascontiguousarray(client.to_host(array)).reshape(-1).view(np.uint8).data
    except Exception as error:
        cause = client.translate(error, client.index_of(array))
        raise type(cause)(
            f"tpu: the result of {op} (first recorded at {where}): {cause}"
        ) from error


def resize(array: object, dtype: torch.dtype, nbytes: int, device: int) -> tuple:
    """The bytes of an array cut or padded with zeros: (array, dtype, sizes)."""
    old = np.ascontiguousarray(pjrt.client().to_host(array)).reshape(-1).view(np.uint8)
    new = np.zeros(nbytes, np.uint8)
    kept = min(nbytes, old.size)
    new[:kept] = old[:kept]
    typed = new.view(NUMPY[dtype]) if nbytes % dtype.itemsize == 0 else new
    return pjrt.client().put(typed, device), FROM_NUMPY[typed.dtype], (typed.size,)


def copy_to_device(array: object, device: int) -> object:
    return pjrt.client().copy_to_device(array, device)


def marker(device: int) -> object:
    """An array that is ready when everything issued before is, or None if nothing ever lags."""
    client = pjrt.client()
    if client.synchronous:
        return None
    text = (
        "func.func public @main() -> (tensor<i32>) {\n"
        "%0 = stablehlo.constant dense<0> : tensor<i32>\nreturn %0 : tensor<i32>\n}\n"
    )
    return client.compile(text, device)([])[0]


def wait(array: object) -> None:
    pjrt.block_until_ready(array)


def translate(error: BaseException, op: str, where: str, device: int) -> None:
    """Raise an execution failure as ours: out of memory, donated, with the op's name."""
    cause = pjrt.client().translate(error, device) if isinstance(error, Exception) else error
    raise type(cause)(f"tpu: {op} (first recorded at {where}): {cause}") from error


# Where the user is.

_OURS = ("tpu_kernels", "torch", "backend")


def user_location() -> str:
    """file:line of the innermost frame outside torch and this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in _OURS:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "a thread without Python frames (autograd)"
