"""The ATen table: which op means what in StableHLO.

Three verbs fill it. `lower` gives a function of hlo values, `decompose` names what torch already
writes in simpler ops, `borrow` takes an implementation from JAX. The schema supplies the rest:
argument names and defaults, in-place and `out=` variants, result dtypes.

A lowering's parameters carry schema names. It receives tensors as `hlo.Value`, dynamic scalars as
0-d values marked weak, everything else as Python values. Two parameters are not in any schema:
`aval`, what torch's Meta kernel says of the result (a tuple for several), and `rng`, the random
state of this call. Arguments that only place the result (dtype, layout, device, ...) need not be
declared.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch._ops import OpOverload, OpOverloadPacket

from .hlo import Shape

PLACEMENT = frozenset(
    {"dtype", "layout", "device", "pin_memory", "memory_format", "generator", "non_blocking"}
)
CONTEXT = frozenset({"aval", "rng"})


class Aval(NamedTuple):
    """What is known of a tensor without its elements. Strides are in elements."""

    shape: Shape
    dtype: torch.dtype
    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Lowering:
    """One row: the function, the arguments it takes at run time, and how it came to be."""

    op: OpOverload
    function: Callable
    accepts: frozenset[str]
    dynamic: frozenset[str]
    verb: str

    def __call__(self, arguments: dict[str, object], context: dict[str, object]) -> object:
        given = {name: value for name, value in arguments.items() if name in self.accepts}
        given.update({name: value for name, value in context.items() if name in self.accepts})
        return self.function(**given)


TABLE: dict[OpOverload, Lowering] = {}


def lower(
    op: OpOverload | OpOverloadPacket, function: Callable | None = None, *, dynamic: str = ""
) -> Callable:
    """Register a lowering: `lower(aten.neg, hlo.negate)`, or as a decorator.

    `dynamic` names, separated by spaces, the scalar arguments that are operands at run time and
    so never cause a new program; all others are constants of the program.
    """
    if function is None:
        return lambda f: lower(op, f, dynamic=dynamic)
    _add(op, function, dynamic, "lowered")
    return function


def decompose(*ops: OpOverload | OpOverloadPacket, using: Callable | None = None) -> None:
    """Let torch's decomposition (or `using`, written in torch ops) stand for each op."""
    from .interpreter import run_decomposition

    for op in ops:
        overload = _overload(op)
        body = using or _torch_decomposition(overload)

        def function(
            *, _body: Callable = body, _op: OpOverload = overload, **given: object
        ) -> object:
            return run_decomposition(_op, _body, given)

        _add(overload, function, "", "decomposed")


def _torch_decomposition(op: OpOverload) -> Callable:
    from torch._decomp import decomposition_table

    if op not in decomposition_table:
        raise KeyError(f"torch {torch.__version__} has no decomposition of {op}; pass using=")
    return decomposition_table[op]


def _overload(op: OpOverload | OpOverloadPacket) -> OpOverload:
    if isinstance(op, OpOverload):
        return op
    if "default" not in op.overloads():
        raise KeyError(f"{op} has no default overload in torch {torch.__version__}; name one")
    return op.default


def _add(op: OpOverload | OpOverloadPacket, function: Callable, dynamic: str, verb: str) -> None:
    overload = _overload(op)
    if overload in TABLE:
        raise ValueError(f"{overload} has a lowering already ({TABLE[overload].verb})")
    if overload in COMPOSED and COMPOSED[overload].when is None:
        raise ValueError(f"{overload} is composed already")
    schema = [argument.name for argument in overload._schema.arguments]
    accepts = _parameters(overload, function, schema)
    names = frozenset(dynamic.split())
    if not names <= set(schema):
        raise ValueError(f"{overload}: dynamic={dynamic!r} is not in its schema {schema}")
    TABLE[overload] = Lowering(overload, function, accepts, names, verb)


def _parameters(op: OpOverload, function: Callable, schema: list[str]) -> frozenset[str]:
    """The names that `function` takes; each argument of the schema must be among them."""
    parameters = inspect.signature(function).parameters.values()
    names = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return frozenset(schema) | (names & CONTEXT)
    unknown = names - set(schema) - CONTEXT
    unknown = {n for n in unknown if not n.startswith("_")}
    missing = set(schema) - names - PLACEMENT
    if unknown or missing:
        raise TypeError(
            f"lowering of {op}: unknown parameters {sorted(unknown)}, missing {sorted(missing)}; "
            f"the schema has {schema}"
        )
    return frozenset(names)


class Composition(NamedTuple):
    """An op run as Python code. `when` is None for always, else asked with the arguments by name;
    its answer may depend only on the tensors' dtypes, devices and ranks, and on bools and ints."""

    function: Callable
    when: Callable[..., bool] | None


COMPOSED: dict[OpOverload, Composition] = {}


def compose(
    op: OpOverload | OpOverloadPacket,
    function: Callable | None = None,
    *,
    when: Callable[..., bool] | None = None,
) -> Callable:
    """Run `op` as Python code over other device ops, each recorded for itself.

    For what one program cannot express: results whose shape depends on data (the function reads a
    size to the host), and arguments that torch mutates without declaring it. The function takes
    the arguments by their schema names. With `when`, the op also has a row, which serves the calls
    that `when` declines.
    """
    if function is None:
        return lambda f: compose(op, f, when=when)
    overload = _overload(op)
    if overload in COMPOSED or (when is None and overload in TABLE):
        raise ValueError(f"{overload} has a lowering or composition already")
    COMPOSED[overload] = Composition(function, when)
    return function


class Form(NamedTuple):
    """How an overload relates to the functional one that its lowering is written for.

    writes: indices of the schema's arguments that are written to. A lowering's results are the
    overload's fresh returns, then the new values of the written arguments.
    """

    functional: OpOverload
    writes: tuple[int, ...]


def form_of(op: OpOverload) -> Form | None:
    """The row that serves `op`: its own, or that of the functional op it is a variant of."""
    writes = tuple(
        i
        for i, argument in enumerate(op._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    if op in TABLE:
        return Form(op, writes)
    if not writes:
        return None
    wanted = _signature(op)
    for candidate in _siblings(op):
        if candidate in TABLE and _signature(candidate) == wanted:
            return Form(candidate, writes)
    return None


def _signature(op: OpOverload) -> tuple:
    """Names and types of the arguments, without those that only receive a result."""
    return tuple(
        (argument.name, str(argument.type))
        for argument in op._schema.arguments
        if not argument.is_out and argument.name not in PLACEMENT - {"generator"}
    )


def _siblings(op: OpOverload) -> Iterable[OpOverload]:
    namespace, _, name = op._schema.name.partition("::")
    for stem in dict.fromkeys((name, name.removesuffix("_"), f"{name}_functional")):
        packet = getattr(getattr(torch.ops, namespace), stem, None)
        for overload in packet.overloads() if packet is not None else ():
            yield getattr(packet, overload)


def variants() -> Sequence[tuple[OpOverload, Form]]:
    """Every overload that the table serves, in-place and `out=` ones included."""
    found: dict[OpOverload, Form] = {}
    for op in tuple(TABLE):
        namespace, _, name = op._schema.name.partition("::")
        for stem in (name, f"{name}_", name.removesuffix("_functional")):
            packet = getattr(getattr(torch.ops, namespace), stem, None)
            for overload in packet.overloads() if packet is not None else ():
                candidate = getattr(packet, overload)
                form = found.get(candidate) or form_of(candidate)
                if form is not None:
                    found[candidate] = form
    return list(found.items())
