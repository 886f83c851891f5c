"""The rules that rows of the ATen table keep, and how overloads find their row."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch._ops import OpOverload

from tpu_kernels.backend import hlo, lowering, registry
from tpu_kernels.backend.lowering import foreach
from tpu_kernels.backend.registry import CONTEXT, TABLE, decompose, form_of, lower

aten = torch.ops.aten


@pytest.fixture
def empty_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TABLE", {})


def test_a_second_row_is_refused(empty_table: None) -> None:
    lower(aten.neg, lambda self: hlo.negate(self))
    with pytest.raises(ValueError, match="aten.neg.default has a lowering already \\(lowered\\)"):
        decompose(aten.neg)


REFUSED: dict[str, tuple[OpOverload, Callable, str, str]] = {
    "a parameter that is no argument": (aten.neg.default, lambda x: x, "", "unknown.*'x'"),
    "an argument left out": (aten.mul.Tensor, lambda self: self, "", "missing.*'other'"),
    "a dynamic name that is no argument": (
        aten.neg.default,
        lambda self: self,
        "alpha",
        "dynamic='alpha' is not in its schema",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, empty_table: None) -> None:
    op, function, dynamic, text = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=text):
        lower(op, function, dynamic=dynamic)
    assert not registry.TABLE


def test_what_torch_does_not_decompose_needs_a_body(empty_table: None) -> None:
    with pytest.raises(KeyError, match="no decomposition of aten.sort.stable; pass using="):
        decompose(aten.sort.stable)


def test_a_packet_without_a_default_overload_must_name_one(empty_table: None) -> None:
    with pytest.raises(KeyError, match="no default overload"):
        lower(aten.lerp, lambda self, end, weight: self)


def test_parameters_are_arguments_of_the_schema() -> None:
    """Rows that take keywords are not checked when they are registered, so they are here."""
    assert lowering and TABLE
    wrong = {}
    for op, row in TABLE.items():
        names = {argument.name for argument in op._schema.arguments} | CONTEXT
        parameters = inspect.signature(row.function).parameters.values()
        named = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
        unknown = {name for name in named - names if not name.startswith("_")}
        if unknown or not row.dynamic <= row.accepts:
            wrong[str(op)] = unknown
    assert not wrong


SERVED_BY = {
    aten.add_.Tensor: aten.add.Tensor,
    aten.add.out: aten.add.Tensor,
    aten.clamp_.Tensor: aten.clamp.Tensor,
    aten.arange.start_out: aten.arange.start_step,
    aten.bernoulli_.float: aten.bernoulli.p,
    aten._foreach_lerp_.ScalarList: aten._foreach_lerp.ScalarList,
    aten._fused_adamw_.default: aten._fused_adamw.default,
    aten.rrelu_with_noise.default: aten.rrelu_with_noise_functional.default,
}


@pytest.mark.parametrize("op", SERVED_BY, ids=str)
def test_writing_overloads_find_the_functional_row(op: OpOverload) -> None:
    form = form_of(op)
    assert form is not None and form.functional is SERVED_BY[op]
    written = [a for a in op._schema.arguments if a.alias_info and a.alias_info.is_write]
    assert [op._schema.arguments[i] for i in form.writes] == written


def test_every_list_op_has_a_row() -> None:
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::_foreach_")]
    unserved = set()
    for name in names:
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(aten, packet), overload or "default")
        if form_of(op) is None and not overload.endswith("out"):
            unserved.add(op)
    left_out = {op for op in unserved if "_foreach_addc" in str(op) or "_foreach_powsum" in str(op)}
    assert unserved == left_out
    assert foreach.element_of(aten._foreach_pow.ScalarAndTensor) is aten.pow.Scalar
