"""What a random view program is made of: tables of statements, each one line of torch.

Structure (which dimension, which sizes) is drawn from `pool`, which is seeded by a tensor's
geometry, so that programs of one pool meet the same geometries again and compile little;
positions and values are drawn from `rng`, which differs in every program.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

BASES = [
    "torch.arange(24.).view(2, 3, 4).to(dev)",
    "torch.arange(24.).view(6, 4).to(dev)",
    "torch.arange(12.).to(dev)",
    "torch.arange(24, dtype=torch.int32).view(4, 6).to(dev)",
    "torch.arange(24.).view(2, 3, 2, 2).to(dev).clone(memory_format=torch.channels_last)",
    "torch.complex(torch.arange(2., 10.), torch.ones(8)).view(2, 4).to(dev)",
    "(torch.arange(12) % 3 == 0).view(3, 4).to(dev)",
    "torch.arange(16, dtype=torch.bfloat16).view(4, 4).to(dev)",
    "torch.arange(12).view(2, 6).to(dev)",
    "torch.arange(20., dtype=torch.float64).view(4, 5).t().to(dev)",
    "torch.zeros(0, 3).to(dev)",
    "torch.tensor(3.).to(dev)",
]

# A storage that grows has undefined elements at its end; these lines define them.
PRELUDE = """\
def grow(t, *sizes):
    old = t.untyped_storage().nbytes() // t.element_size()
    t.resize_(sizes)
    new = t.untyped_storage().nbytes() // t.element_size()
    end = torch.empty(0, dtype=t.dtype, device=t.device)
    end.set_(t.untyped_storage(), old, (new - old,)).zero_()
"""


class Statement(NamedTuple):
    """One line; `writes` names the tensor whose memory it changes and `reads` the others.

    idempotent: every element is written with the same value, so overlap is harmless.
    """

    text: str
    writes: str = ""
    reads: tuple[str, ...] = ()
    idempotent: bool = False


Expression = Callable[[random.Random, random.Random, torch.Tensor], str]
Mutation = Callable[[random.Random, random.Random, str, dict[str, torch.Tensor]], Statement]


def _dim(pool: random.Random, t: torch.Tensor) -> int:
    return pool.randrange(max(1, t.ndim))


def _size(t: torch.Tensor, dim: int) -> int:
    return t.shape[dim] if t.ndim else 1


def _start(rng: random.Random, slack: int) -> int:
    return rng.randint(0, max(0, slack))


def _divisor(pool: random.Random, n: int) -> int:
    return pool.choice([d for d in range(1, n + 1) if n % d == 0]) if n else 1


def _factored(pool: random.Random, n: int) -> tuple[int, ...]:
    """Sizes whose product is n."""
    sizes = []
    for _ in range(pool.randint(0, 2)):
        sizes.append(_divisor(pool, n))
        n //= sizes[-1]
    return (*sizes, n)


def _span(t: torch.Tensor) -> int:
    return t.untyped_storage().nbytes() // t.element_size()


def _strided(pool: random.Random, rng: random.Random, count: int) -> str:
    """Arguments of as_strided within `count` elements."""
    sizes = [pool.randint(1, 4) for _ in range(pool.randint(0, 3))] if count else [0, 2]
    strides = [pool.choice([0, 1, 1, 2, 3, 4, 6]) for _ in sizes]
    while (last := sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))) >= count > 0:
        sizes[pool.randrange(len(sizes))] = 1
    return f"{tuple(sizes)}, {tuple(strides)}, {_start(rng, count - last - 1)}"


# Expressions: what follows the name of a tensor, and gives a new one.


def _slice(pool: random.Random, rng: random.Random, t: torch.Tensor) -> str:
    dim, step = _dim(pool, t), pool.choice([1, 1, 1, 2, 3])
    n = pool.randint(1, max(1, -(-_size(t, dim) // step)))
    start = _start(rng, _size(t, dim) - (n - 1) * step - 1)
    return f"[{':, ' * dim}{start}:{start + (n - 1) * step + 1}:{step}]"


def _select(pool: random.Random, rng: random.Random, t: torch.Tensor) -> str:
    dim = _dim(pool, t)
    wrong = rng.random() < 0.03
    return f".select({dim}, {_size(t, dim) if wrong else _start(rng, _size(t, dim) - 1)})"


def _narrow(pool: random.Random, rng: random.Random, t: torch.Tensor) -> str:
    dim = _dim(pool, t)
    n = pool.randint(0 if pool.random() < 0.1 else 1, max(1, _size(t, dim)))
    return f".narrow({dim}, {_start(rng, _size(t, dim) - n)}, {n})"


def _permute(pool: random.Random, rng: random.Random, t: torch.Tensor) -> str:
    return f".permute({tuple(pool.sample(range(t.ndim), t.ndim))})"


def _expand(pool: random.Random, rng: random.Random, t: torch.Tensor) -> str:
    dim = pool.randint(0, t.ndim)
    sizes = (*t.shape[:dim], pool.randint(1, 3), *t.shape[dim:])
    return f".unsqueeze({dim}).expand({sizes})"


def _unfold(pool: random.Random, rng: random.Random, t: torch.Tensor) -> str:
    dim = _dim(pool, t)
    return f".unfold({dim}, {pool.randint(1, max(1, _size(t, dim)))}, {pool.randint(1, 3)})"


def _diagonal(pool: random.Random, rng: random.Random, t: torch.Tensor) -> str:
    dims = pool.sample(range(max(2, t.ndim)), 2)
    return f".diagonal({pool.choice([-1, 0, 0, 1])}, {dims[0]}, {dims[1]})"


def _parts(pool: random.Random, rng: random.Random, t: torch.Tensor) -> str:
    dim, n = _dim(pool, t), pool.randint(1, 3)
    count = max(1, min(n, _size(t, dim)))
    which = rng.randrange(-(-_size(t, dim) // -(-_size(t, dim) // count)) if _size(t, dim) else 1)
    return f".{pool.choice(['chunk', 'tensor_split'])}({count}, {dim})[{which}]"


def _as_dtype(pool: random.Random, rng: random.Random, t: torch.Tensor) -> str:
    if t.dtype is torch.bool:
        return ".view(torch.uint8).clone()"  # a byte other than 0 and 1 is no bool
    if t.ndim and (t.shape[-1] == 1 or t.numel() == 0):
        return ".clone()"  # torch looks at the last stride, which addresses nothing here
    dtypes = [torch.int32, torch.int16, torch.uint8, torch.int64, torch.float32, torch.bfloat16]
    return f".view({pool.choice(dtypes)})"


def _as_pairs(pool: random.Random, rng: random.Random, t: torch.Tensor) -> str:
    if not t.dtype.is_complex:
        return pool.choice([".view(torch.complex64)", ".unflatten(-1, (-1, 2))"])
    return pool.choice([".real", ".imag", ".conj()", ".view(torch.float32)"])


VIEWS: list[Expression] = [
    _slice,
    _slice,
    _select,
    _narrow,
    _permute,
    _expand,
    _unfold,
    _diagonal,
    _parts,
    _as_dtype,
    _as_pairs,
    lambda pool, rng, t: f".transpose({_dim(pool, t)}, {_dim(pool, t)})",
    lambda pool, rng, t: f".movedim({_dim(pool, t)}, {_dim(pool, t)})",
    lambda pool, rng, t: f".{pool.choice(['view', 'reshape'])}({_factored(pool, t.numel())})",
    lambda pool, rng, t: f".as_strided({_strided(pool, rng, _span(t))})",
    lambda pool, rng, t: f".as_strided((3, 2), (3, 2), {_start(rng, _span(t))})",
    lambda pool, rng, t: f".unsqueeze({pool.randint(-1, t.ndim)})",
    lambda pool, rng, t: pool.choice([".squeeze()", f".squeeze({_dim(pool, t)})"]),
    lambda pool, rng, t: pool.choice([".flatten()", ".mT", ".T", "[None, ...]"]),
    lambda pool, rng, t: pool.choice([".detach()", ".data", ".view_as(%s)", ".contiguous()"]),
    lambda pool, rng, t: pool.choice([".clone()", ".mul(2)", ".add(1)", ".to(torch.float32)"]),
    lambda pool, rng, t: pool.choice(
        [".__deepcopy__({})", ".add(2)", ".cpu().contiguous().clone().to(dev)"]
    ),
    lambda pool, rng, t: ".clone(memory_format=torch.channels_last)" if t.ndim == 4 else ".clone()",
]


# Mutations: a statement that changes a tensor, or makes a name stand for other memory.


def _number(rng: random.Random) -> int:
    return rng.randint(2, 5)


def _other(rng: random.Random, name: str, live: dict[str, torch.Tensor]) -> str:
    """A tensor that broadcasts to the named one, if there is another."""
    shape, fits = live[name].shape, []
    for other, t in live.items():
        tail = shape[len(shape) - t.ndim :] if t.ndim <= len(shape) else None
        if tail is not None and all(n in (1, m) for n, m in zip(t.shape, tail, strict=True)):
            fits.append(other)
    return rng.choice(fits)


def _scalar(method: str) -> Mutation:
    return lambda pool, rng, x, live: Statement(f"{x}.{method}({_number(rng)})", x)


def _with_other(template: str) -> Mutation:
    def make(
        pool: random.Random, rng: random.Random, x: str, live: dict[str, torch.Tensor]
    ) -> Statement:
        other = _other(rng, x, live)
        return Statement(template.format(x=x, y=other), x, (other,))

    return make


def _product(pool: random.Random, rng: random.Random, x: str, live: dict) -> Statement:
    """Into its first factor. Complex and mixed products round in an order the device chooses."""
    other = _other(rng, x, live)
    function = "add" if live[x].dtype.is_complex or live[other].dtype != live[x].dtype else "mul"
    return Statement(f"torch.{function}({x}, {other}, out={x})", x, (other,))


def _fill(pool: random.Random, rng: random.Random, x: str, live: dict) -> Statement:
    text = pool.choice(["{x}.fill_({n})", "{x}.zero_()", "{x}[...] = {n}"])
    return Statement(text.format(x=x, n=_number(rng)), x, idempotent=True)


def _from_host(pool: random.Random, rng: random.Random, x: str, live: dict) -> Statement:
    t = live[x]
    source = f"torch.arange({t.numel()}).add({_number(rng)}).view({tuple(t.shape)})"
    return Statement(f"{x}.copy_({source}{pool.choice(['', '.to(torch.float32)'])})", x)


def _index_copy(pool: random.Random, rng: random.Random, x: str, live: dict) -> Statement:
    t = live[x]
    dim = _dim(pool, t)
    n = pool.randint(min(1, _size(t, dim)), _size(t, dim))
    chosen = rng.sample(range(_size(t, dim)), n)
    sizes = (*t.shape[:dim], n, *t.shape[dim + 1 :]) if t.ndim else ()
    source = f"torch.full({sizes}, {_number(rng)}, dtype={t.dtype}).to(dev)"
    index = f"torch.tensor({chosen}, dtype=torch.int64).to(dev)"
    return Statement(f"{x}.index_copy_({dim}, {index}, {source})", x)


def _masked_fill(pool: random.Random, rng: random.Random, x: str, live: dict) -> Statement:
    mask = [bool(rng.randint(0, 1)) for _ in range(_size(live[x], -1))] if live[x].ndim else True
    return Statement(f"{x}.masked_fill_(torch.tensor({mask}).to(dev), {_number(rng)})", x)


def _slice_assign(pool: random.Random, rng: random.Random, x: str, live: dict) -> Statement:
    where = _slice(pool, rng, live[x])
    return Statement(f"{x}{where} = {_number(rng)}", x, idempotent=True)


def _resize(pool: random.Random, rng: random.Random, x: str, live: dict) -> Statement:
    t = live[x]
    have = max(0, _span(t) - int(t.storage_offset()))
    smaller = _factored(pool, pool.randint(0, max(0, min(have, 12))))
    larger = _factored(pool, have + pool.randint(1, 6))
    if pool.random() < 0.5 or t.dtype is torch.bool:
        return Statement(f"{x}.resize_({smaller})")
    return Statement(f"grow({x}, {', '.join(map(str, larger))})")


def _set(pool: random.Random, rng: random.Random, x: str, live: dict) -> Statement:
    # torch refuses `.data =` between tensors of such a device whose conjugate bits differ.
    kind_of = lambda t: (t.dtype, t.is_conj(), t.is_neg())  # noqa: E731
    other = rng.choice([name for name in live if kind_of(live[name]) == kind_of(live[x])])
    t = live[other]
    kind = pool.choice(["whole", "storage", "data", "empty"])
    if kind == "whole":
        return Statement(f"{x}.set_({other})")
    if kind == "data":
        return Statement(f"{x}.data = {other}{_slice(pool, rng, t)}")
    sizes, strides, offset = eval(f"({_strided(pool, rng, _span(t))})")
    place = f"{other}.untyped_storage(), {offset}, {sizes}, {strides}"
    target = x if kind == "storage" else f"torch.empty(0, dtype={t.dtype}, device=dev)"
    return Statement(f"{x if kind == 'storage' else '_'} = {target}.set_({place})")


def _inplace_view(pool: random.Random, rng: random.Random, x: str, live: dict) -> Statement:
    t = live[x]
    a, b = _dim(pool, t), _dim(pool, t)
    calls = [f"transpose_({a}, {b})", f"unsqueeze_({a})", "squeeze_()", "t_()"]
    calls.append(f"as_strided_({_strided(pool, rng, _span(t))})")
    return Statement(f"{x}.{pool.choice(calls)}")


MUTATIONS: list[Mutation] = [
    _scalar("add_"),
    _scalar("add_"),
    _scalar("mul_"),
    _fill,
    _fill,
    _slice_assign,
    _from_host,
    _index_copy,
    _masked_fill,
    _with_other("{x}.copy_({y})"),
    _with_other("{x}.copy_({y})"),
    _with_other("{x}.add_({y})"),
    _with_other("torch.add({y}, 1, out={x})"),
    _product,
    _resize,
    _set,
    _inplace_view,
]


def draw_base(rng: random.Random, name: str) -> Statement:
    return Statement(f"{name} = {rng.choice(BASES)}")


BRANCHES = 24  # statements that a pool knows for one geometry, of views and of mutations each


def _structure(pool: int, t: torch.Tensor, branch: int) -> random.Random:
    """What decides the structure of one of the statements this pool knows for a geometry."""
    return random.Random(f"{pool} {tuple(t.shape)} {t.stride()} {t.dtype} {branch}")


def draw_view(
    seed: int, rng: random.Random, name: str, source: str, live: dict[str, torch.Tensor]
) -> Statement:
    """A new name for a view, a copy or a result of the source."""
    t = live[source]
    pool = _structure(seed, t, rng.randrange(BRANCHES))
    pairs = t.dtype is torch.float32 and t.numel() and t.shape[-1:] == (2,) or t.dtype.is_complex
    if pairs and pool.random() < 0.3:
        function = "view_as_real" if t.dtype.is_complex else "view_as_complex"
        return Statement(f"{name} = torch.{function}({source})")
    text = pool.choice(VIEWS)(pool, rng, t)
    if "%s" in text:
        text %= _other(rng, source, live)
    return Statement(f"{name} = {source}{text}")


def draw_mutation(
    seed: int, rng: random.Random, name: str, live: dict[str, torch.Tensor]
) -> Statement:
    pool = _structure(seed, live[name], BRANCHES + rng.randrange(BRANCHES))
    return pool.choice(MUTATIONS)(pool, rng, name, live)


# Programs whose result torch leaves undefined.


def addresses(t: torch.Tensor) -> list[int]:
    """The first byte of every element."""
    index = torch.full(t.shape, int(t.storage_offset()))
    for dim, (n, stride) in enumerate(zip(t.shape, t.stride(), strict=True)):
        index += (torch.arange(n) * stride).reshape([-1] + [1] * (t.ndim - 1 - dim))
    return (index.flatten() * t.element_size()).tolist()


def _bytes_of(t: torch.Tensor) -> set[int]:
    return {a + i for a in addresses(t) for i in range(t.element_size())}


def undefined(statement: Statement, live: dict[str, torch.Tensor]) -> bool:
    """Whether the order of memory accesses, which torch does not promise, decides the result."""
    target = live.get(statement.writes)
    if target is None or statement.idempotent:
        return False
    expanded = any(n > 1 and s == 0 for n, s in zip(target.shape, target.stride(), strict=True))
    if expanded and "masked_fill_" in statement.text:
        return True
    if not expanded and len(set(addresses(target))) < math.prod(target.shape):
        return True
    return any(_races(target, live[name]) for name in statement.reads if name in live)


def _races(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether reads and writes meet in memory in a way that torch does not detect."""
    if target.untyped_storage()._cdata != source.untyped_storage()._cdata:
        return False
    if _place(target) == _place(source) or not _bytes_of(target) & _bytes_of(source):
        return False
    return not (_dense(target) and _dense(source))


def _place(t: torch.Tensor) -> Sequence:
    return tuple(t.shape), t.stride(), t.storage_offset(), t.dtype


def _dense(t: torch.Tensor) -> bool:
    return torch.ops.aten.is_non_overlapping_and_dense(t)
