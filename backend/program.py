"""Recorded calls to one StableHLO module.

A cell's value has an id: an external input of the trace, or a result of an earlier call. A call
reads its tensors from the cells' values through views and gives fresh values, and new values of
the cells it writes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch._ops import OpOverload

from . import hlo, registry, views
from .hlo import Shape, Value
from .interpreter import lower_call, memory_order
from .registry import Aval, Form
from .rng import Rng

EXTERNAL = 0x80000000


class TensorOperand(NamedTuple):
    """A tensor argument. offset: elements, or with dynamic_offset its place among the integers."""

    id: int
    dtype: torch.dtype
    sizes: Shape
    strides: Shape
    offset: int
    dynamic_offset: bool
    base_dtype: torch.dtype
    base_sizes: Shape


class ScalarOperand(NamedTuple):
    """A scalar operand: its place among the dynamic floats or integers of its call."""

    dtype: torch.dtype
    slot: int
    weak: bool


class Output(NamedTuple):
    """A tensor that a call creates, and the shape of its cell's value."""

    sizes: Shape
    strides: Shape
    dtype: torch.dtype
    base_sizes: Shape


@dataclass(frozen=True)
class Record:
    """One recorded call. `ints` and `floats` count the dynamic operands it adds to its trace."""

    op: OpOverload
    form: Form
    arguments: dict[str, object]
    outputs: tuple[Output, ...]
    ints: int
    floats: int
    draws: int = 0


@dataclass
class Module:
    """A finished module. inputs: which external inputs it takes, in order, before the scalars."""

    text: str
    inputs: list[int]
    takes_ints: bool
    takes_floats: bool


@dataclass
class Lowerer:
    """Emits the calls of one trace into a builder."""

    builder: hlo.Builder = field(default_factory=hlo.Builder)
    values: dict[int, Value] = field(default_factory=dict)
    ints: int = 0
    floats: int = 0
    takes: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    drawn: int = 0  # blocks of random bits that the last call consumed

    # Operands.

    def base(self, operand: TensorOperand) -> Value:
        if operand.id not in self.values:
            name = f"%in{operand.id & ~EXTERNAL}"
            self.values[operand.id] = Value(name, operand.base_sizes, operand.base_dtype)
        return self.values[operand.id]

    def _dynamic(self, vector: str, slot: int, dtype: torch.dtype) -> Value:
        self.takes.add(vector)
        whole = Value(f"%{vector}", (self.counts[vector],), dtype)
        return hlo.reshape(hlo.slice_(whole, [slot], [slot + 1]), ())

    def integer(self, slot: int) -> Value:
        return self._dynamic("ints", slot, torch.int64)

    def scalar(self, operand: ScalarOperand) -> Value:
        if operand.dtype.is_complex:
            at = self.floats + operand.slot
            parts = [self._dynamic("floats", at + i, torch.float64) for i in (0, 1)]
            value = hlo.complex_(*parts)
        elif operand.dtype.is_floating_point:
            value = self._dynamic("floats", self.floats + operand.slot, torch.float64)
        else:
            value = self.integer(self.ints + operand.slot)
        value = hlo.convert(value, operand.dtype)
        return Value(value.name, (), operand.dtype, operand.weak)

    def geometry(self, operand: TensorOperand) -> tuple[Shape, Shape, int | Value]:
        offset: int | Value = operand.offset
        if operand.dynamic_offset:
            offset = self.integer(self.ints + operand.offset)
        return operand.sizes, operand.strides, offset

    def read(self, operand: TensorOperand) -> Value:
        return views.read(self.base(operand), operand.dtype, *self.geometry(operand))

    def operand(self, x: object) -> object:
        if isinstance(x, TensorOperand):
            return self.read(x)
        if isinstance(x, ScalarOperand):
            return self.scalar(x)
        if isinstance(x, list):
            return [self.operand(item) for item in x]
        return x

    # Calls.

    def call(self, record: Record, first_id: int) -> int:
        """Emit one call; its results take ids from first_id on. Returns the next free id."""
        accepts = registry.TABLE[record.form.functional].accepts
        values = {n: self.operand(x) if n in accepts else x for n, x in record.arguments.items()}
        targets = self.targets(record)
        avals = [Aval(o.sizes, o.dtype, o.strides) for o in record.outputs]
        avals += [Aval(t.sizes, t.dtype, t.strides) for t in targets]
        rng = self.rng(record)
        results = lower_call(record.form.functional, values, avals, rng)
        self.drawn = rng.used if rng is not None else 0
        for output, value in zip(record.outputs, results, strict=False):
            self.values[first_id] = _in_memory_order(output, value)
            first_id += 1
        latest: dict[int, int] = {}
        for target, value in zip(targets, results[len(record.outputs) :], strict=True):
            self.write(target, value, latest.get(target.id, target.id), first_id)
            latest[target.id] = first_id
            first_id += 1
        self.ints += record.ints
        self.floats += record.floats
        return first_id

    def rng(self, record: Record) -> Rng | None:
        if not record.draws:
            return None
        seed = self.ints + record.ints - 2
        return Rng(self.integer(seed), self.integer(seed + 1))

    def targets(self, record: Record) -> list[TensorOperand]:
        names = [record.op._schema.arguments[i].name for i in record.form.writes]
        found: list[TensorOperand] = []
        for name in names:
            given = record.arguments[name]
            items = given if isinstance(given, list) else [given]
            found += [item for item in items if isinstance(item, TensorOperand)]
        return found

    def write(self, target: TensorOperand, value: Value, base_id: int, new_id: int) -> None:
        """The new value of a written cell; the old one is an input only where some of it stays."""
        geometry = self.geometry(target)
        if views.covers(target.base_sizes, target.base_dtype, target.dtype, *geometry):
            base = hlo.constant(0, target.base_dtype, target.base_sizes)
        else:
            base = self.base(target._replace(id=base_id))
        self.values[new_id] = views.write(base, value, target.dtype, *geometry)


def _in_memory_order(output: Output, value: Value) -> Value:
    order = memory_order(output.sizes, output.strides)
    if order is not None:
        return hlo.transpose(value, order)
    base = hlo.constant(0, output.dtype, output.base_sizes)
    return views.write(base, value, output.dtype, output.sizes, output.strides, 0)


def module(records: Sequence[Record], live: Sequence[int], donated: Sequence[int]) -> Module:
    """Lower a trace. donated[k]: the external input whose memory result k takes, or -1."""
    lowerer = Lowerer()
    lowerer.counts = {
        "ints": sum(record.ints for record in records),
        "floats": sum(record.floats for record in records),
    }
    externals = _externals(records)
    with hlo.building(lowerer.builder):
        next_id = 0
        for record in records:
            next_id = lowerer.call(record, next_id)
        results = [lowerer.values[i] for i in live]
    types = ", ".join(value.type for value in results)
    body = "\n".join(lowerer.builder.lines)
    body += f"\nreturn {', '.join(value.name for value in results)} : {types}\n"
    inputs = sorted(set(map(int, re.findall(r"%in(\d+)", body))))
    aliases = {gift: k for k, gift in enumerate(donated) if gift >= 0}
    signature = [
        f"%in{i}: {hlo.type_of(*externals[i])}"
        + (f" {{tf.aliasing_output = {aliases[i]} : i32}}" if i in aliases else "")
        for i in inputs
    ]
    for name, element in (("ints", torch.int64), ("floats", torch.float64)):
        if name in lowerer.takes:
            signature.append(f"%{name}: {hlo.type_of((lowerer.counts[name],), element)}")
    text = f"func.func public @main({', '.join(signature)}) -> ({types}) {{\n{body}}}\n"
    return Module(text, inputs, "ints" in lowerer.takes, "floats" in lowerer.takes)


def blocks_drawn(record: Record) -> int:
    """How many blocks of random bits a call consumes: found by lowering it once."""
    lowerer = Lowerer()
    lowerer.counts = {"ints": record.ints, "floats": record.floats}
    with hlo.building(lowerer.builder):
        lowerer.call(record, 0)
    return lowerer.drawn


def _externals(records: Sequence[Record]) -> dict[int, tuple[Shape, torch.dtype]]:
    found: dict[int, tuple[Shape, torch.dtype]] = {}

    def visit(x: object) -> None:
        if isinstance(x, TensorOperand) and x.id & EXTERNAL:
            found[x.id & ~EXTERNAL] = (x.base_sizes, x.base_dtype)
        elif isinstance(x, list):
            for item in x:
                visit(item)

    for record in records:
        for argument in record.arguments.values():
            visit(argument)
    return found
