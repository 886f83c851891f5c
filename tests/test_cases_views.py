"""Published cases on views and mutation, and refusals of overlapping memory in torch's words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tpu_kernels  # noqa: F401  (brings the device where the entry point is not installed)


def test_D30_a_slice_is_not_a_copy() -> None:
    x = torch.zeros(5, device="tpu")
    y = x[0:1].add_(1)
    y.add_(1)
    assert x.tolist() == [2, 0, 0, 0, 0]
    w = torch.arange(4.0, device="tpu").reshape(2, 2)
    w.t()[0].mul_(10)
    assert w.tolist() == [[0, 1], [20, 3]]


def test_D33_data_of_another_shape() -> None:
    t = torch.zeros(80, device="tpu")
    t.data = t.data[:10]
    assert t.shape == (10,)
    assert t.tolist() == [0] * 10
    t.data = torch.ones(2, 3, device="tpu")
    t += 1
    assert t.tolist() == [[2, 2, 2], [2, 2, 2]]


def test_D35_a_view_sees_a_later_write_to_its_base() -> None:
    t = torch.arange(6.0, device="tpu").view(2, 3)
    r = t[1]
    t[1, 0] = 10
    r[0] *= 2
    assert t[1, 0].item() == 20
    assert r.tolist() == [20, 4, 5]


def test_D35_tensors_that_share_a_storage_see_each_other() -> None:
    t = torch.arange(6.0, device="tpu")
    other = torch.empty(0, device="tpu").set_(t.untyped_storage(), 2, (2, 2), (2, 1))
    other[1, 1] = 50
    t[2] = 20
    assert t.tolist() == [0, 1, 20, 3, 4, 50]
    assert other.tolist() == [[20, 3], [4, 50]]


def test_D35_dlpack_shares_or_refuses() -> None:
    t = torch.zeros(3, device="tpu")
    try:
        other = torch.from_dlpack(t)
    except (RuntimeError, BufferError, TypeError, ValueError, NotImplementedError):
        return
    t.add_(1)
    assert other.tolist() == [1, 1, 1]


def test_D37_a_value_is_read_before_a_later_write() -> None:
    x = torch.ones(2, 6, device="tpu")
    y = x.view(torch.int32) * 2
    x[:, 2:5] = 2
    assert y.tolist() == [[2 * 0x3F800000] * 6] * 2  # the bits of 1.0, twice
    e = torch.ones(2, 3, device="tpu")
    s = e.sum()
    e.zero_()
    assert s.item() == 6.0


# Each writes to memory that it also reads, or more than once.
OVERLAPS: dict[str, Callable[[str], object]] = {
    "add_ to expanded": lambda dev: torch.ones(1, device=dev).expand(3).add_(1),
    "copy_ to expanded": lambda dev: (
        torch.ones(1, device=dev).expand(3).copy_(torch.zeros(3, device=dev))
    ),
    "out= expanded": lambda dev: torch.add(
        torch.ones(3, device=dev), 1, out=torch.ones(1, device=dev).expand(3)
    ),
    "index_copy_ to expanded": lambda dev: (
        torch.ones(1, device=dev)
        .expand(3)
        .index_copy_(0, torch.tensor([1], device=dev), torch.zeros(1, device=dev))
    ),
    "add_ of a shifted self": lambda dev: _shifted(dev, lambda a, b: a.add_(b)),
    "copy_ of a shifted self": lambda dev: _shifted(dev, lambda a, b: a.copy_(b)),
    "out= partly an operand": lambda dev: _shifted(dev, lambda a, b: torch.mul(b, b, out=a)),
}
# Every element is written with the same value, so torch allows these.
IDEMPOTENT: dict[str, Callable[[str], object]] = {
    "fill_ expanded": lambda dev: torch.ones(1, device=dev).expand(3).fill_(4),
    "zero_ expanded": lambda dev: torch.ones(2, 1, device=dev).expand(2, 3).zero_(),
    "zero_ windows": lambda dev: torch.ones(6, device=dev).unfold(0, 3, 1)[1:3].zero_(),
    "out= the operand": lambda dev: _square(dev, lambda x: torch.mul(x, 2, out=x)),
}


def _shifted(dev: str, write: Callable) -> object:
    x = torch.arange(6.0, device=dev)
    return write(x[1:], x[:-1])


def _square(dev: str, write: Callable) -> object:
    return write(torch.arange(9.0, device=dev).view(3, 3))


@pytest.mark.parametrize("name", OVERLAPS)
def test_overlap_is_refused_in_torchs_words(name: str) -> None:
    with pytest.raises(RuntimeError) as torchs:
        OVERLAPS[name]("cpu")
    with pytest.raises(RuntimeError) as ours:
        OVERLAPS[name]("tpu")
    assert str(ours.value) == str(torchs.value)


@pytest.mark.parametrize("name", IDEMPOTENT)
def test_overlap_that_torch_allows(name: str) -> None:
    got, want = IDEMPOTENT[name]("tpu"), IDEMPOTENT[name]("cpu")
    assert isinstance(got, torch.Tensor) and isinstance(want, torch.Tensor)
    assert torch.equal(got.cpu(), want)


def test_as_strided_outside_the_storage_is_refused_in_torchs_words() -> None:
    def outside(dev: str) -> torch.Tensor:
        return torch.zeros(6, device=dev).as_strided((2, 2), (4, 1), 1)

    with pytest.raises(RuntimeError) as torchs:
        outside("cpu")
    with pytest.raises(RuntimeError) as ours:
        outside("tpu")
    assert str(ours.value) == str(torchs.value)


def test_writes_reach_memory_through_conjugate_and_negative_views() -> None:
    def written(dev: str) -> list[list[complex]]:
        values = []
        for write in CONJUGATE_WRITES:
            x = torch.complex(torch.arange(1.0, 5.0), torch.ones(4)).to(dev)
            write(x)
            values.append(x.tolist())
        return values

    assert written("tpu") == written("cpu")


CONJUGATE_WRITES: list[Callable[[torch.Tensor], object]] = [
    lambda x: x.conj().fill_(2 + 3j),
    lambda x: x.conj().copy_(x + 1),
    lambda x: x.conj().copy_(torch.ones(4) * 2j),
    lambda x: x.conj().add_(1j),
    lambda x: torch.add(x.clone(), 2j, out=x.conj()),
    lambda x: x.conj()[1:3].mul_(2),
    lambda x: x.conj().imag.fill_(7),
    lambda x: x.conj().imag.add_(1),
    lambda x: x.conj().imag[1::2].copy_(torch.ones(2)),
]


def test_copy_between_dtypes_of_one_memory() -> None:
    """The same address, sizes and strides: yet not a copy onto itself."""

    def copied(dev: str) -> list[float]:
        x = torch.arange(6.0).to(dev)
        return x.copy_(x.view(torch.int32)).tolist()

    assert copied("tpu") == copied("cpu")


def test_offsets_by_value_and_by_operand_are_told_apart() -> None:
    """(3, 2) strided by (3, 2): some offsets cross a row of the base and are constants."""

    def scaled(dev: str, offset: int) -> list[list[float]]:
        x = torch.arange(40.0).view(2, 5, 4).to(dev)
        x.as_strided((3, 2), (3, 2), offset).mul_(2)
        return x.tolist()

    for offset in (*range(31), *reversed(range(31))):
        assert scaled("tpu", offset) == scaled("cpu", offset), offset
