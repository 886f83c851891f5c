"""backend/views.py against torch.as_strided on CPU: reads, writes, dynamic offsets, dtypes.

Many geometries are results of one program, so that a test compiles once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from tpu_kernels.backend import hlo, pjrt, views
from tpu_kernels.backend.dtypes import NUMPY
from tpu_kernels.backend.hlo import Value

Geometry = tuple[tuple[int, ...], tuple[int, ...], int]


class Batch:
    """Results to be computed by one program, each with the tensor that torch computed."""

    def __init__(self) -> None:
        self.operands: list[torch.Tensor] = []
        self.results: list[tuple[str, Callable, tuple[int, ...], torch.Tensor]] = []

    def operand(self, tensor: torch.Tensor) -> int:
        self.operands.append(tensor.contiguous())
        return len(self.operands) - 1

    def expect(self, label: str, want: torch.Tensor, emit: Callable, *operands: int) -> None:
        self.results.append((label, emit, operands, want))

    def text(self) -> str:
        args = [Value(f"%arg{i}", tuple(t.shape), t.dtype) for i, t in enumerate(self.operands)]
        with hlo.building(hlo.Builder()) as builder:
            values = [emit(*(args[i] for i in which)) for _, emit, which, _ in self.results]
        for value, (label, _, _, want) in zip(values, self.results, strict=True):
            assert value.shape == tuple(want.shape) and value.dtype == want.dtype, label
        head = ", ".join(f"{arg.name}: {arg.type}" for arg in args)
        types, names = ", ".join(v.type for v in values), ", ".join(v.name for v in values)
        body = "\n".join(builder.lines)
        return (
            f"module {{\nfunc.func public @main({head}) -> ({types}) {{\n{body}\n"
            f"return {names} : {types}\n}}\n}}"
        )

    def check(self) -> None:
        assert self.results
        client = pjrt.client()
        executable = client.compile(self.text(), 0)
        outputs = executable([client.put(_to_numpy(t), 0) for t in self.operands])
        for output, (label, _, _, want) in zip(outputs, self.results, strict=True):
            got = np.ascontiguousarray(client.to_host(output))
            assert got.tobytes() == _bytes(want), label


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
    return flat.view(torch.uint8).numpy().tobytes()


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    flat = np.frombuffer(_bytes(tensor), NUMPY[tensor.dtype])
    return flat.reshape(tensor.shape)


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Distinct values whose bytes are a valid pattern of every dtype of the tests."""
    if dtype is torch.bool:
        return torch.arange(seed, seed + math.prod(shape)).reshape(shape) % 3 == 0
    values = torch.arange(seed + 1, seed + 1 + math.prod(shape), dtype=torch.float64)
    return values.reshape(shape).to(dtype)


def rule_accepts(rule: list[tuple[int, int, int]], offset: int) -> bool:
    return all(offset // stride % size <= most for stride, size, most in rule)


def memory(base: torch.Tensor, dtype: torch.dtype, geometry: Geometry) -> torch.Tensor:
    """The view as torch on CPU has it, on the base's own memory."""
    view = torch.empty(0, dtype=dtype)
    return view.set_(base.untyped_storage(), geometry[2], geometry[0], geometry[1])


def addresses(geometry: Geometry) -> list[int]:
    sizes, strides, offset = geometry
    index = torch.zeros(sizes, dtype=torch.int64) + offset
    for i, (n, stride) in enumerate(zip(sizes, strides, strict=True)):
        index += (torch.arange(n) * stride).reshape([-1] + [1] * (len(sizes) - 1 - i))
    return index.flatten().tolist()


def add_read(batch: Batch, base: torch.Tensor, dtype: torch.dtype, geometry: Geometry) -> None:
    label = f"read {tuple(base.shape)} {base.dtype} as {dtype} {geometry}"
    want = memory(base, dtype, geometry).clone()
    batch.expect(label, want, lambda b: views.read(b, dtype, *geometry), batch.operand(base))


def add_write(batch: Batch, base: torch.Tensor, dtype: torch.dtype, geometry: Geometry) -> None:
    label = f"write {tuple(base.shape)} {base.dtype} as {dtype} {geometry}"
    want, value = base.clone(), filled(geometry[0], dtype, seed=40)
    memory(want, dtype, geometry).copy_(value)
    if views.covers(tuple(base.shape), base.dtype, dtype, *geometry):
        gone = Value("%undefined", tuple(base.shape), base.dtype)
        emit: Callable = lambda v: views.write(gone, v, dtype, *geometry)  # noqa: E731
        batch.expect(label, want, emit, batch.operand(value))
        return
    operands = batch.operand(base), batch.operand(value)
    batch.expect(label, want, lambda b, v: views.write(b, v, dtype, *geometry), *operands)


def add_dynamic(batch: Batch, base: torch.Tensor, dtype: torch.dtype, geometry: Geometry) -> int:
    """Reads and writes at offsets that the rule accepts; returns how many."""
    sizes, strides, _ = geometry
    rule = views.offset_rule(tuple(base.shape), base.dtype, dtype, sizes, strides)
    if rule is None:
        return 0
    count = base.numel() * base.element_size() // dtype.itemsize
    accepted = [offset for offset in range(count) if rule_accepts(rule, offset)]
    source = batch.operand(base)
    for offset in sorted({accepted[0], accepted[len(accepted) // 2], accepted[-1]}):
        label = f"dynamic {tuple(base.shape)} {base.dtype} as {dtype} {sizes} {strides} +{offset}"
        place = (sizes, strides, offset)
        at = batch.operand(torch.tensor(offset))
        want = memory(base, dtype, place).clone()
        emit: Callable = lambda b, o: views.read(b, dtype, sizes, strides, o)  # noqa: E731
        batch.expect(label, want, emit, source, at)
        if len(set(addresses(place))) < math.prod(sizes):
            continue
        want, value = base.clone(), filled(sizes, dtype, seed=40)
        memory(want, dtype, place).copy_(value)
        emit = lambda b, v, o: views.write(b, v, dtype, sizes, strides, o)  # noqa: E731
        batch.expect(f"{label} write", want, emit, source, batch.operand(value), at)
    return len(accepted)


# Random geometries.

SHAPES = [(24,), (4, 6), (6, 4), (2, 3, 4), (5, 7), (3, 1, 5), (2, 2, 3, 2), (1,), (), (7, 2, 2)]


def random_views(rng: random.Random, count: int) -> Iterator[tuple[tuple[int, ...], Geometry]]:
    """(base shape, geometry), by chains of torch's own view functions and by raw as_strided."""
    for _ in range(count):
        shape = rng.choice(SHAPES)
        base = torch.empty(shape, device="meta")
        view = base
        for _ in range(rng.randint(1, 4)):
            view = random_step(rng, view)
        yield shape, (tuple(view.shape), tuple(view.stride()), int(view.storage_offset()))
    for _ in range(count // 3):
        shape = rng.choice(SHAPES)
        yield shape, random_strided(rng, math.prod(shape))


def random_strided(rng: random.Random, count: int) -> Geometry:
    sizes = tuple(rng.randint(1, 4) for _ in range(rng.randint(0, 3)))
    strides = tuple(rng.choice([0, 1, 1, 2, 3, 4, 6, 8]) for _ in sizes)
    while (last := sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))) >= count:
        i = rng.randrange(len(sizes))
        sizes = (*sizes[:i], 1, *sizes[i + 1 :])
    return sizes, strides, rng.randrange(count - last)


def random_step(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    if x.ndim == 0:
        return x.expand(rng.randint(1, 3)) if rng.random() < 0.5 else x.unsqueeze(0)
    dim = rng.randrange(x.ndim)
    n = x.shape[dim]
    start = rng.randrange(n)
    divisor = rng.choice([d for d in range(1, n + 1) if n % d == 0])
    window = rng.randint(1, n)
    steps: list[Callable[[], torch.Tensor]] = [
        lambda: x.narrow(dim, start, rng.randint(1, n - start)),
        lambda: x.select(dim, start),
        lambda: x[(slice(None),) * dim + (slice(start, None, rng.randint(1, 3)),)],
        lambda: x.movedim(dim, 0),
        lambda: x.unflatten(dim, (divisor, n // divisor)),
        lambda: x.unfold(dim, window, rng.randint(1, 3)),
        lambda: x.unsqueeze(dim).expand(*x.shape[:dim], 2, *x.shape[dim:]),
        lambda: x.diagonal(0, dim, (dim + 1) % x.ndim) if x.ndim > 1 else x,
        lambda: x.view(-1) if x.is_contiguous() else x.t() if x.ndim == 2 else x,
    ]
    return rng.choice(steps)()


@pytest.mark.parametrize("seed", range(3))
def test_random_geometries(seed: int) -> None:
    rng, batch = random.Random(seed), Batch()
    for shape, geometry in random_views(rng, 60):
        base = filled(shape, rng.choice([torch.float32, torch.int64, torch.bool]))
        add_read(batch, base, base.dtype, geometry)
        if len(set(addresses(geometry))) == math.prod(geometry[0]):
            add_write(batch, base, base.dtype, geometry)
    batch.check()


@pytest.mark.parametrize("seed", range(3))
def test_random_dynamic_offsets(seed: int) -> None:
    rng, batch = random.Random(100 + seed), Batch()
    for shape, geometry in random_views(rng, 20):
        add_dynamic(batch, filled(shape, torch.int32), torch.int32, geometry)
    batch.check()


# Dtype views.

REAL = [
    *(torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64),
    *(torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn),
]
DTYPES = [*REAL, torch.complex64, torch.complex128]


def dtype_geometries(base: torch.Tensor, dtype: torch.dtype) -> Iterator[Geometry]:
    """Blocks at an offset, and the second half or the whole."""
    count = base.numel() * base.element_size() // dtype.itemsize
    if count >= 6:
        yield (2, 2), (3, 1), 1
    start = count // 2 if dtype.itemsize % 4 else 0
    yield (1, count - start), (7, 1), start


@pytest.mark.parametrize("base_dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def test_dtype_matrix(base_dtype: torch.dtype) -> None:
    batch = Batch()
    base = filled((4, 12), base_dtype)
    for dtype in DTYPES:
        if dtype is torch.bool and base_dtype not in (torch.bool, torch.uint8):
            continue  # a bool holds one bit of its byte: other bytes have no value to compare
        for geometry in dtype_geometries(base, dtype):
            add_read(batch, base, dtype, geometry)
            if base_dtype is not torch.bool or dtype is torch.bool:
                add_write(batch, base, dtype, geometry)
        if dtype.itemsize != base_dtype.itemsize and dtype.itemsize > 1:
            add_dynamic(batch, base, dtype, ((3,), (1,), 0))
    batch.check()


def test_bool_written_through_bytes() -> None:
    batch, base = Batch(), filled((2, 3), torch.bool)
    value = torch.tensor([1, 0, 1, 1], dtype=torch.uint8)
    want = base.clone()
    want.view(-1)[1:5] = value.bool()
    operands = batch.operand(base), batch.operand(value)
    batch.expect(
        "bytes into bools",
        want,
        lambda b, v: views.write(b, v, torch.uint8, (4,), (1,), 1),
        *operands,
    )
    batch.check()


def test_raw_bytes_hold_any_dtype() -> None:
    """A storage made from bytes alone; its length need not be a multiple of the item."""
    batch, base = Batch(), torch.arange(43, dtype=torch.uint8)
    for dtype in (torch.float32, torch.int64, torch.complex64, torch.int16):
        for geometry in [((2,), (1,), 1), ((2, 2), (2, 1), 0), ((2, 2), (2, 1), 1)]:
            if (max(addresses(geometry)) + 1) * dtype.itemsize <= 43:
                add_read(batch, base, dtype, geometry)
                add_write(batch, base, dtype, geometry)
    batch.check()


def test_nan_bits_survive() -> None:
    batch = Batch()
    bits = torch.tensor([0x7FA00001, 0x7FC12345, -0x400000, -1], dtype=torch.int32)
    add_read(batch, bits, torch.float32, ((4,), (1,), 0))
    add_read(batch, bits.view(torch.float32), torch.int32, ((4,), (1,), 0))
    add_read(batch, bits.view(torch.complex64), torch.int32, ((4,), (1,), 0))
    add_write(batch, bits.view(torch.complex64), torch.int16, ((3,), (2,), 1))
    batch.check()


# What the program looks like.


def emitted(shape: tuple[int, ...], view: Callable[[torch.Tensor], torch.Tensor]) -> list[str]:
    """The operations that read a view of a float base."""
    geometry = view(torch.empty(shape, device="meta"))
    with hlo.building(hlo.Builder()) as builder:
        base = Value("%base", shape, torch.float32)
        place = tuple(geometry.shape), geometry.stride(), int(geometry.storage_offset())
        views.read(base, torch.float32, *place)
    return [line.split(" = ")[1].split(" ")[0].removeprefix("stablehlo.") for line in builder.lines]


STRUCTURED = {
    "whole": (lambda x: x, []),
    "flat": (lambda x: x.view(-1), ["reshape"]),
    "permute": (lambda x: x.permute(2, 0, 1), ["transpose"]),
    "row": (lambda x: x[2], ["slice", "reshape"]),
    "column": (lambda x: x[:, 1], ["slice", "reshape"]),
    "minibatch": (lambda x: x[2:4], ["slice"]),
    "every second": (lambda x: x[:, ::2], ["slice", "slice"]),
    "channels": (lambda x: x[:, :2].movedim(1, -1), ["slice", "transpose"]),
    "expand": (lambda x: x.select(0, 0).expand(5, 6, 8), ["slice", "reshape", "broadcast_in_dim"]),
    "heads": (lambda x: x.view(4, 6, 2, 4).transpose(1, 2), ["reshape", "transpose"]),
    "qkv": (lambda x: x.view(4, 6, 2, 4)[:, :, 1], ["slice"]),
    "diagonal": (lambda x: x[:, :6, :6].diagonal(0, 1, 2), ["reshape", "slice", "slice"]),
}


@pytest.mark.parametrize("name", STRUCTURED)
def test_common_views_are_structured(name: str) -> None:
    view, operations = STRUCTURED[name]
    assert emitted((4, 6, 8), view) == operations


DYNAMIC: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor, int], torch.Tensor]]] = {
    "x[i]": ((10, 3, 4), lambda x, i: x[i]),
    "x[:, i]": ((3, 10, 4), lambda x, i: x[:, i]),
    "x[..., i]": ((3, 4, 10), lambda x, i: x[..., i]),
    "x[i, i:i+2]": ((10, 12), lambda x, i: x[i, i : i + 2]),
    "x[i, i, i]": ((10, 10, 10), lambda x, i: x[i, i, i]),
    "minibatch": ((40, 5), lambda x, i: x[i * 4 : (i + 1) * 4]),
    "flat parameter": ((400,), lambda x, i: x[i * 7 : i * 7 + 12].view(3, 4)),
    "unaligned flat": ((20, 4), lambda x, i: x.view(-1)[i * 5 : i * 5 + 6]),
    "transposed": ((12, 6), lambda x, i: x.t()[:, i : i + 2]),
    "strided": ((30, 2), lambda x, i: x[i : i + 6 : 2]),
    "same data as int32": ((10, 6), lambda x, i: x.view(torch.int32)[i]),
    "half the width": ((10, 6), lambda x, i: x.view(torch.int16)[i]),
    "twice the width": ((10, 6), lambda x, i: x.view(torch.int64)[i]),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_one_program_serves_all_offsets(name: str) -> None:
    shape, view = DYNAMIC[name]
    seen = [view(torch.empty(shape, device="meta"), i) for i in range(10)]
    assert len({(x.shape, x.stride()) for x in seen}) == 1
    rule = views.offset_rule(shape, torch.float32, seen[0].dtype, seen[0].shape, seen[0].stride())
    assert rule is not None
    assert all(rule_accepts(rule, int(x.storage_offset())) for x in seen)


def test_whole_views_need_no_operand() -> None:
    assert views.offset_rule((4, 6), torch.float32, torch.float32, (6, 4), (1, 6)) is None
    assert views.offset_rule((), torch.float32, torch.float32, (), ()) is None
    assert views.offset_rule((4, 0), torch.float32, torch.float32, (0, 4), (4, 1)) is None


# Edges and refusals.


def test_zero_size_and_scalars() -> None:
    batch = Batch()
    for shape in [(0,), (3, 0), (4,), ()]:
        base = filled(shape, torch.float32)
        add_read(batch, base, torch.float32, ((2, 0), (5, 1), 0))
        add_read(batch, base, torch.int64, ((0,), (1,), 0))
        add_write(batch, base, torch.float32, ((2, 0), (5, 1), 0))
    add_read(batch, filled((), torch.float32), torch.float32, ((), (), 0))
    add_write(batch, filled((), torch.float32), torch.int32, ((1, 1), (9, 9), 0))
    add_read(batch, filled((1,), torch.float32), torch.float32, ((3, 2), (0, 0), 0))
    batch.check()


def test_outside_the_storage_is_refused_in_torchs_words() -> None:
    storage = torch.zeros(6)
    with pytest.raises(RuntimeError) as torchs:
        storage.as_strided((2, 2), (4, 1), 1)
    with hlo.building(hlo.Builder()), pytest.raises(RuntimeError) as ours:
        views.read(Value("%x", (2, 3), torch.float32), torch.float32, (2, 2), (4, 1), 1)
    assert str(ours.value) == str(torchs.value)


def test_elements_that_share_memory_are_written_once() -> None:
    """torch lets fill_ and zero_ write to expanded and overlapping views: all values are equal."""
    batch, base = Batch(), filled((5, 2), torch.float32)
    for geometry in [((3, 2), (0, 1), 4), ((3, 3), (1, 1), 2), ((2, 3, 2), (1, 0, 2), 1)]:
        want = base.clone()
        want.as_strided(*geometry).zero_()
        batch.expect(
            f"zero {geometry}",
            want,
            lambda b, v, geometry=geometry: views.write(b, v, torch.float32, *geometry),
            batch.operand(base),
            batch.operand(torch.zeros(geometry[0])),
        )
    batch.check()
