"""Typed values and the text builder that every StableHLO operation goes through."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from ..dtypes import HLO, real_of

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """One SSA value. `weak` marks a Python scalar, which takes part in torch's type promotion."""

    name: str
    shape: Shape
    dtype: torch.dtype
    weak: bool = False

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return numel(self.shape)

    @property
    def type(self) -> str:
        return type_of(self.shape, self.dtype)


def numel(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def type_of(shape: Sequence[int], dtype: torch.dtype) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{HLO[dtype]}>"


@dataclass
class Builder:
    """Collects the operations of one function as text. Equal pure operations are emitted once."""

    lines: list[str] = field(default_factory=list)
    scopes: list[dict[str, tuple[Value, ...]]] = field(default_factory=lambda: [{}])
    count: int = 0

    def fresh(self) -> str:
        self.count += 1
        return f"%{self.count}"

    def emit(self, text: str, *results: tuple[Shape, torch.dtype]) -> tuple[Value, ...]:
        for scope in self.scopes:
            if text in scope:
                return scope[text]
        name = self.fresh()
        if len(results) == 1:
            values: tuple[Value, ...] = (Value(name, *results[0]),)
            self.lines.append(f"{name} = {text}")
        else:
            values = tuple(Value(f"{name}#{i}", *r) for i, r in enumerate(results))
            self.lines.append(f"{name}:{len(results)} = {text}")
        self.scopes[-1][text] = values
        return values

    def region(self, avals: Sequence[tuple[Shape, torch.dtype]], body: Callable) -> str:
        """The text of a one-block region: `body` maps the block's arguments to its results."""
        outer, self.lines = self.lines, []
        self.scopes.append({})
        try:
            args = [Value(self.fresh(), *aval) for aval in avals]
            results = body(*args)
            results = (results,) if isinstance(results, Value) else tuple(results)
            names = ", ".join(value.name for value in results)
            types = ", ".join(value.type for value in results)
            head = ", ".join(f"{arg.name}: {arg.type}" for arg in args)
            label = f"^bb0({head}):\n" if args else ""
            inner = "\n".join(self.lines)
            return f'{{\n{label}{inner}\n"stablehlo.return"({names}) : ({types}) -> ()\n}}'
        finally:
            self.lines = outer
            self.scopes.pop()


class _Current(threading.local):
    builder: Builder | None = None


_current = _Current()


@contextmanager
def building(builder: Builder) -> Iterator[Builder]:
    """Make `builder` the one that this thread's operations are emitted into."""
    previous, _current.builder = _current.builder, builder
    try:
        yield builder
    finally:
        _current.builder = previous


def builder() -> Builder:
    if _current.builder is None:
        raise RuntimeError("no StableHLO builder is active; use hlo.building(hlo.Builder())")
    return _current.builder


def emit(text: str, shape: Sequence[int], dtype: torch.dtype) -> Value:
    """Emit an operation with one result, given as text without its result name."""
    return builder().emit(text, (tuple(shape), dtype))[0]


def emit_generic(
    op: str,
    operands: Sequence[Value],
    results: Sequence[tuple[Sequence[int], torch.dtype]],
    attributes: str = "",
    regions: Sequence[str] = (),
) -> tuple[Value, ...]:
    """Emit `op` in MLIR's generic form: attributes as `name = attr, ...`, regions as text."""
    names = ", ".join(value.name for value in operands)
    inputs = ", ".join(value.type for value in operands)
    avals = tuple((tuple(shape), dtype) for shape, dtype in results)
    outputs = ", ".join(type_of(*aval) for aval in avals)
    attrs = f" <{{{attributes}}}>" if attributes else ""
    blocks = f" ({', '.join(regions)})" if regions else ""
    return builder().emit(f'"{op}"({names}){attrs}{blocks} : ({inputs}) -> ({outputs})', *avals)


def i64s(values: Sequence[int]) -> str:
    """The attribute text of an i64 array."""
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


_FLOAT_BITS = {torch.float64: ("<d", "<Q", 16), torch.float32: ("<f", "<I", 8)}


def _literal(value: complex | float | int | bool, dtype: torch.dtype) -> str:
    """The exact MLIR literal: floats are written as their bits."""
    if dtype.is_complex:
        number, part = complex(value), real_of(dtype)
        return f"({_literal(number.real, part)}, {_literal(number.imag, part)})"
    if dtype is torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        return str(int(value.real))
    if dtype in _FLOAT_BITS:
        floating, integer, digits = _FLOAT_BITS[dtype]
        try:
            packed = struct.pack(floating, float(value.real))
        except OverflowError:
            packed = struct.pack(floating, float("inf") if value.real > 0 else float("-inf"))
        return f"0x{struct.unpack(integer, packed)[0]:0{digits}X}"
    if dtype.itemsize == 1:
        return f"0x{torch.tensor(value, dtype=dtype).view(torch.uint8).item():02X}"
    return f"0x{torch.tensor(value, dtype=dtype).view(torch.uint16).item():04X}"


def constant(value: complex, dtype: torch.dtype, shape: Sequence[int] = ()) -> Value:
    """A splat constant."""
    type_ = type_of(shape, dtype)
    return emit(f"stablehlo.constant dense<{_literal(value, dtype)}> : {type_}", shape, dtype)


def array(values: torch.Tensor) -> Value:
    """A dense constant with the elements of a small CPU tensor."""

    def nested(item: object) -> str:
        if isinstance(item, list):
            return f"[{', '.join(map(nested, item))}]"
        return _literal(item, values.dtype)  # type: ignore[arg-type]

    if values.numel() == 0:
        return constant(0, values.dtype, tuple(values.shape))
    text = f"stablehlo.constant dense<{nested(values.tolist())}> : "
    return emit(text + type_of(values.shape, values.dtype), values.shape, values.dtype)


def zeros_like(x: Value) -> Value:
    return constant(0, x.dtype, x.shape)


def full_like(x: Value, value: complex) -> Value:
    return constant(value, x.dtype, x.shape)
