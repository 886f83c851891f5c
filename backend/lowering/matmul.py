"""Matrix products. 16-bit operands accumulate in float32 and the result is rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tpu_kernels.errors import Unsupported

from .. import hlo
from ..dtypes import OPMATH
from ..hlo import Value
from ..promotion import scalar
from ..registry import Aval, decompose, lower

aten = torch.ops.aten


Dims = tuple[Sequence[int], Sequence[int]]


def _product(x: Value, y: Value, contract: Dims, batch: Dims = ((), ())) -> Value:
    """A contraction whose result has the accumulator's dtype."""
    if x.dtype != y.dtype:
        raise RuntimeError(f"expected both to have the same dtype, but got: {x.dtype} != {y.dtype}")
    if x.dtype is torch.bool:
        raise Unsupported("matmul", "torch has no product of bool matrices", "convert to int first")
    return hlo.dot_general(x, y, contract, batch, dtype=OPMATH.get(x.dtype, x.dtype))


def mm(self: Value, mat2: Value) -> Value:
    return _product(self, mat2, ([1], [0]))


def bmm(self: Value, mat2: Value) -> Value:
    if self.shape[0] == 1:  # jaxlib 0.10 on a CPU fails on bf16 with a batch of one, transposed
        return hlo.expand_dims(mm(hlo.squeeze(self, [0]), hlo.squeeze(mat2, [0])), [0])
    return _product(self, mat2, ([2], [1]), ([0], [0]))


def addbmm(self: Value, mat2: Value) -> Value:
    return _product(self, mat2, ([0, 2], [0, 1]))


def mv(self: Value, vec: Value) -> Value:
    return _product(self, vec, ([1], [0]))


def dot(self: Value, tensor: Value) -> Value:
    return _product(self, tensor, ([0], [0]))


def vdot(self: Value, other: Value) -> Value:
    if self.dtype.is_complex:
        self = hlo.complex_(hlo.real(self), hlo.negate(hlo.imag(self)))
    return dot(self, other)


def outer(self: Value, vec2: Value) -> Value:
    return _product(self, vec2, ([], []))


def _scaled(x: Value, factor: object) -> Value:
    """factor * x; the factor is a Python number or a run-time scalar."""
    if not isinstance(factor, Value) and factor == 1:
        return x
    return hlo.multiply(x, hlo.broadcast(hlo.convert(scalar(factor), x.dtype), x.shape))


def _plus(self: Value, beta: object, product: Value) -> Value:
    """beta * self + product, where a beta of zero ignores NaN and infinity in self."""
    if not isinstance(beta, Value) and beta == 0:
        return product
    addend = _scaled(hlo.broadcast(hlo.convert(self, product.dtype), product.shape), beta)
    if isinstance(beta, Value):
        unused = hlo.eq(beta, hlo.zeros_like(beta))
        addend = hlo.select(unused, hlo.zeros_like(addend), addend)
    return hlo.add(addend, product)


def add_product(product: Callable[[Value, Value], Value]) -> Callable[..., Value]:
    """The lowering of `beta * self + alpha * product(x, y)`, rounded once."""

    def lowered(*, aval: Aval, **given: Any) -> Value:
        self, x, y = (given.pop(name) for name in tuple(given)[:3])
        scaled = _scaled(product(x, y), given["alpha"])
        return hlo.convert(_plus(self, given["beta"], scaled), aval.dtype)

    return lowered


lower(aten.mm, mm)
lower(aten.bmm, bmm)
lower(aten.mv, mv)
lower(aten.dot, dot)
lower(aten.vdot, vdot)
lower(aten._int_mm, lambda self, mat2: hlo.dot_general(self, mat2, ([1], [0]), dtype=torch.int32))
lower(aten.mm.dtype, lambda self, mat2, out_dtype: mm(self, mat2))
lower(aten.bmm.dtype, lambda self, mat2, out_dtype: bmm(self, mat2))

lower(aten.addmm, add_product(mm), dynamic="alpha beta")
lower(aten.addmm.dtype, add_product(mm), dynamic="alpha beta")
lower(aten.baddbmm, add_product(bmm), dynamic="alpha beta")
lower(aten.baddbmm.dtype, add_product(bmm), dynamic="alpha beta")
lower(aten.addbmm, add_product(addbmm), dynamic="alpha beta")
lower(aten.addmv, add_product(mv), dynamic="alpha beta")
lower(aten.addr, add_product(outer), dynamic="alpha beta")

decompose(aten._addmm_activation)
