"""Reading and writing by index tensors: masks, duplicates, broken rules, and what is compiled."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.fresh_process import python
from tpu_kernels.testing import assert_close, no_compiles, program_count

X = torch.arange(24.0).view(4, 3, 2)
ROWS, COLUMNS = torch.tensor([2, 0, -1]), torch.tensor([[0], [2]])
MASK = torch.tensor([True, False, True, True])
DEEP = torch.tensor([[True, False, True], [False] * 3, [False, True, False], [True] * 3])

READS: dict[str, tuple] = {
    "rows": (ROWS,),
    "two": (ROWS, torch.tensor([1, 1, -3])),
    "broadcast": (COLUMNS, ROWS),
    "apart": (ROWS, slice(None), torch.tensor([0, 1, -1])),
    "inner": (slice(None), COLUMNS),
    "none": (None, ROWS, slice(1, None)),
    "empty": (torch.empty(0, dtype=torch.int64),),
    "int32": (ROWS.int(),),
    "mask": (MASK,),
    "deep mask": (DEEP,),
    "inner mask": (slice(None), torch.tensor([True, False, True])),
    "full mask": (X > 5,),
    "no element": (X > 100,),
    "mask and rows": (MASK, ROWS),
    "mask and slice": (MASK, slice(0, 2), torch.tensor([0, 1, 1])),
}


def moved(index: tuple) -> tuple:
    return tuple(i.to("tpu") if isinstance(i, Tensor) else i for i in index)


def same(function: Callable[..., object], *operands: object) -> None:
    """function(operands on the device) equals function(operands on the CPU)."""
    got = function(*(x.to("tpu") if isinstance(x, Tensor) else x for x in operands))
    for g, w in zip(tensors(got), tensors(function(*operands)), strict=True):
        assert_close(g, w, "EXACT")


def tensors(result: object) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [tensor for item in result for tensor in tensors(item)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("index", READS.values(), ids=READS)
def test_read_and_write(index: tuple) -> None:
    want, got = X.clone(), X.to("tpu")
    assert_close(got[moved(index)], want[index], "EXACT")
    values = torch.randn_like(want[index])
    got[moved(index)] = values.to("tpu")
    want[index] = values
    assert_close(got, want, "EXACT")
    got[moved(index)] = -1.5
    want[index] = -1.5
    assert_close(got, want, "EXACT")


def test_index_tensors_on_the_cpu() -> None:
    x = X.to("tpu")
    assert_close(x[ROWS], X[ROWS], "EXACT")
    assert_close(x[MASK], X[MASK], "EXACT")
    x[ROWS] = 1.0
    assert x[ROWS].eq(1).all()


@pytest.mark.parametrize("shape", [(), (2,), (3, 2), (1, 3, 2), (3, 1, 1), (3, 3, 2)], ids=str)
@pytest.mark.parametrize("accumulate", [False, True])
def test_masked_write_broadcasts(shape: tuple[int, ...], accumulate: bool) -> None:
    same(lambda x, m, v: x.index_put((m,), v, accumulate), X, MASK, torch.randn(shape))


def test_of_equal_indices_the_last_write_wins_and_sums_take_all() -> None:
    index, source = torch.tensor([1, 3, 1, 1]), torch.arange(24.0).view(4, 3, 2)
    same(lambda x, i, v: x.index_put((i,), v), X, index, source)
    same(lambda x, i, v: x.index_put((i,), v, accumulate=True), X, index, source)
    same(lambda x, i, v: x.index_add(0, i, v, alpha=2), X, index, source)
    same(lambda x, i, v: x.index_copy(0, i, v), X, index, source)
    same(lambda x, i, v: x.scatter_add(0, i.view(4, 1, 1).expand(4, 3, 2), v), X, index, source)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_scatter_reduce(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    x = torch.tensor([[5, -7, 2], [1, 1, 1]]).to(dtype)
    index = torch.tensor([[0, 0, 2, 0], [1, 1, 1, 1]])
    source = torch.tensor([[-3, 8, 4, 2], [0, 3, -2, 1]]).to(dtype)
    same(
        lambda x, i, v: x.scatter_reduce(1, i, v, reduce, include_self=include_self),
        x,
        index,
        source,
    )


def test_nan_wins_a_scattered_maximum() -> None:
    index, source = torch.tensor([0, 0, 1]), torch.tensor([1.0, float("nan"), 2.0])
    same(lambda x, i, v: x.scatter_reduce(0, i, v, "amax"), torch.zeros(3), index, source)


def test_smaller_indices_than_the_operand() -> None:
    index = torch.tensor([[1, 0], [2, 2]])
    x, source = torch.randn(3, 5), torch.randn(2, 3)
    same(
        lambda x, i, v: (x.gather(0, i), x.scatter(0, i, v), x.scatter(0, i, 7.0)), x, index, source
    )


def test_scalars_are_indexed_like_one_element() -> None:
    zero = torch.tensor(0)
    same(
        lambda x, i: (x.gather(0, i), x.scatter(0, i, 3.0), x.index_select(0, i)), X[0, 0, 0], zero
    )
    same(lambda x, i: (x.take(i), x.index_fill(0, i, 9.0), x.nonzero()), X[0, 0, 1], zero)


@pytest.mark.parametrize("x", [DEEP, MASK, X, torch.tensor(True), torch.zeros(0, 3)])
def test_nonzero(x: Tensor) -> None:
    same(lambda x: (x.nonzero(), torch.nonzero_static(x, size=5), x.argwhere()), x)


def test_unique() -> None:
    x = torch.tensor([[3, 1, 3], [1, 7, 3]])
    options = {"return_inverse": True, "return_counts": True}
    same(lambda x: torch.unique(x, **options), x)
    same(
        lambda x: torch.unique(x, dim=0, **options), torch.tensor([[1, 2], [0, 5], [1, 2], [0, 4]])
    )
    same(lambda x: torch.unique_consecutive(x.flatten(), **options), x)


def test_sizes_read_from_data() -> None:
    same(lambda x, n: x.repeat_interleave(n, 0), X, torch.tensor([1, 0, 2, 1]))
    same(lambda x: x.bincount(minlength=4), torch.tensor([1, 7, 1]))
    same(lambda x, m: x.masked_select(m), X, MASK.view(4, 1, 1))


def test_copies_of_strided_views_see_the_storage() -> None:
    same(lambda x: torch.as_strided_copy(x.mT, (2, 2), (1, 2), 1), X)
    same(lambda x, v: x[1:].mT.as_strided_scatter(v, (2, 2), (1, 2), 7), X, torch.ones(2, 2))


def test_gradients_of_slices_take_their_place() -> None:
    grad = torch.randn(2, 3)
    aten = torch.ops.aten
    same(lambda g: aten.slice_backward(g, [2, 9], 1, -8, 9, 3), grad)
    same(lambda g: aten.select_backward(g, [2, 4, 3], 1, -2), grad)
    aten.select_backward(grad.to("tpu"), [2, 4, 3], 1, 0)
    with no_compiles():  # positions are operands
        aten.select_backward(grad.to("tpu"), [2, 4, 3], 1, 3)


def test_D39_masked_assignment_reads_one_size() -> None:
    def step(x: Tensor, y: Tensor) -> Tensor:
        x[x > 0] = y[x > 0]
        return x

    y = torch.tensor([9.0, 8, 7, 6], device="tpu")
    assert step(torch.tensor([-1.0, 2, -3, 4], device="tpu"), y).tolist() == [-1, 8, -3, 6]
    x = torch.tensor([1.0, -2, 3, -4], device="tpu")
    with program_count() as counts:
        step(x, y)
    assert counts.transfers <= 1
    assert counts.compiles == 0
    assert x.tolist() == [9, -2, 7, -4]
    with program_count() as counts:
        x[x > 0] = 0
    assert counts.transfers == 0


REFUSED = (
    ("x[torch.tensor([7], device=d)]", "index 7 is out of bounds for dimension 0 with size 5"),
    (
        "x[torch.tensor([-6], device=d)] = 0",
        "index -6 is out of bounds for dimension 0 with size 5",
    ),
    (
        "x.gather(1, torch.tensor([[3]], device=d))",
        "index 3 is out of bounds for dimension 1 with size 3",
    ),
    ("x.index_select(0, torch.tensor([-1], device=d))", "index out of range in self"),
    (
        "x.take(torch.tensor([15], device=d))",
        "out of range: tried to access index 15 on a tensor of 15 elements.",
    ),
    (
        "x.index_copy(0, torch.tensor([5], device=d), x[:1])",
        "index_copy_(): index 5 is out of bounds for dimension 0 with size 5",
    ),
    ("torch.embedding(x, torch.tensor([5], device=d))", "index out of range in self"),
    (
        "x[x > 8] = torch.ones(9, device=d)",
        "shape mismatch: value tensor of shape [9] cannot be broadcast to indexing result of "
        "shape [6]",
    ),
    ("x.masked_scatter(x > 0, x[0])", "Number of elements of source < number of ones in mask"),
    (
        "x[torch.ones(4, device=d, dtype=torch.bool)]",
        "The shape of the mask [4] at index 0 does not match the shape of the indexed tensor "
        "[5, 3] at index 0",
    ),
)

SCRIPT = """
import torch
for line in {lines!r}:
    for d in ("tpu", "cpu"):
        x = torch.arange(15., device=d).view(5, 3)
        try:
            exec(line)
            print("no error")
        except (IndexError, RuntimeError) as error:
            print(type(error).__name__, str(error).splitlines()[0], sep=": ")
"""


def test_out_of_bounds_in_debug_mode() -> None:
    """The device says what torch's CPU kernels say."""
    lines = [line for line, _ in REFUSED]
    fresh = python(SCRIPT.format(lines=lines), TORCH_TPU_LAUNCH_BLOCKING="1")
    on_device, on_cpu = fresh.stdout.splitlines()[::2], fresh.stdout.splitlines()[1::2]
    assert on_device == on_cpu, fresh.stderr
    assert [said.split(": ", 1)[1] for said in on_device] == [text for _, text in REFUSED]
