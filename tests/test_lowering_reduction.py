"""Reductions, scans, softmax and sorting where values are special: NaN, ties, nothing at all."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tpu_kernels.testing import assert_close

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom")

NAN, INF = float("nan"), float("inf")

SPECIAL = {
    "ties": [[1.0, 3.0, 3.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0, 2.0]],
    "nan": [[1.0, NAN, 3.0, NAN, 0.0], [NAN, NAN, NAN, NAN, NAN]],
    "infinities": [[-INF, -INF, -INF, -INF, -INF], [INF, 1.0, -INF, INF, 0.0]],
    "signed zeros": [[0.0, -0.0, 0.0, -0.0, 1.0], [-0.0, -0.0, 0.0, -1.0, -0.0]],
}

ROWS: dict[str, Callable[[Tensor], object]] = {
    "max": lambda x: x.max(1),
    "min": lambda x: x.min(1),
    "argmax": lambda x: (x.argmax(1), x.argmax(), x.argmax(0, keepdim=True)),
    "argmin": lambda x: (x.argmin(1), x.argmin(), x.argmin(0, keepdim=True)),
    "amax": lambda x: (x.amax(1), x.amax(), x.amax((0, 1), keepdim=True)),
    "aminmax": lambda x: (*torch.aminmax(x), *torch.aminmax(x, dim=0)),
    "any": lambda x: (x.any(), x.any(1), x.all((0, 1))),
    "sum": lambda x: (x.sum(1), x.nansum(1), x.sum(), x.mean(0)),
    "logsumexp": lambda x: x.logsumexp(1),
    "norm": lambda x: [torch.linalg.vector_norm(x, p, 1) for p in (0, 1, 2, INF, -INF)],
    "cummax": lambda x: x.cummax(1),
    "cummin": lambda x: x.cummin(1),
    "cumsum": lambda x: (x.cumsum(1), x.cumprod(1)),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "softmax": lambda x: (x.softmax(1), x.log_softmax(1)),
    "sort": lambda x: x.sort(dim=1, stable=True),
    "sort descending": lambda x: x.sort(dim=1, stable=True, descending=True),
    "topk": lambda x: (x.topk(3).values, x.topk(5, largest=False).values),
    "median": lambda x: (x.median(), x.median(1).values, x.nanmedian(), x.nanmedian(1).values),
}


def tensors(result: object) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [tensor for item in result for tensor in tensors(item)]  # type: ignore[attr-defined]


def same(function: Callable[[Tensor], object], x: Tensor, policy: str = "FP32") -> None:
    for got, want in zip(tensors(function(x.to("tpu"))), tensors(function(x)), strict=True):
        assert_close(got, want, policy)


@pytest.mark.parametrize("values", SPECIAL.values(), ids=SPECIAL)
@pytest.mark.parametrize("function", ROWS.values(), ids=ROWS)
def test_special_values(function: Callable[[Tensor], object], values: list) -> None:
    same(function, torch.tensor(values))


def test_nan_survives_a_long_reduction() -> None:
    x = torch.zeros(300, 1000)
    x[3, 5], x[299, 999] = NAN, NAN
    same(lambda x: (x.amax(1), x.amin(0), x.max(), x.max(1), x.argmin(1)), x, "EXACT")


def test_nothing_at_all() -> None:
    x = torch.empty(3, 0)
    same(lambda x: (x.sum(1), x.mean(), x.prod(1), x.any(), x.all(1), x.var(1), x.cumsum(1)), x)
    same(lambda x: (x.softmax(1), x.amax(0), x.sort(1), x.logsumexp(1), x.flip(1)), x)
    for function in (Tensor.max, Tensor.argmax, lambda x: x.max(1), lambda x: x.median(1)):
        with pytest.raises((IndexError, RuntimeError), match="Expected reduction dim"):
            function(x.to("tpu"))


def test_a_scalar_is_its_own_reduction() -> None:
    same(lambda x: (x.sum(0), x.max(0), x.argmax(), x.cumsum(0), x.softmax(0)), torch.tensor(2.5))
    same(lambda x: (x.sort(), x.topk(1), x.median(0), x.kthvalue(1), x.mode()), torch.tensor(2.5))


def test_correction_larger_than_the_row() -> None:
    x = torch.randn(2, 3)
    same(lambda x: (x.var(1, correction=3), x.std(1, correction=5), x.var(1, correction=0.5)), x)


def test_variance_of_a_large_mean_keeps_its_digits() -> None:
    x = torch.randn(8, 1000) + 1e4
    got = x.to("tpu").var(1)
    assert_close(got, x.double().var(1).float(), "FP32_ACCUM")


def test_long_sums_are_as_accurate_as_torch() -> None:
    x = torch.rand(1_000_000)
    for function in (Tensor.sum, Tensor.mean, Tensor.norm):
        assert_close(function(x.to("tpu")), function(x.double()).float(), "FP32_ACCUM")
    scan = x.to("tpu").cumsum(0)
    assert_close(scan, x.double().cumsum(0).float(), "FP32_ACCUM")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.uint8])
def test_integers_are_summed_in_int64(dtype: torch.dtype) -> None:
    x = torch.tensor([[100, 100, 0], [27, 100, 1]]).to(dtype)
    same(lambda x: (x.sum(1), x.prod(1), x.cumsum(1), x.any(1), x.count_nonzero()), x, "EXACT")


def test_int64_sums_wrap_and_lose_nothing() -> None:
    x = torch.tensor([2**62, 2**62 - 1, 5, -3])
    same(lambda x: (x.sum(), x.cumsum(0), x.max(0), x.sort()), x, "EXACT")


def test_bfloat16_is_accumulated_in_float32() -> None:
    x = torch.rand(1000, 300).bfloat16()
    assert_close(x.to("tpu").sum(0), x.float().sum(0), "BF16_OUT")
    assert_close(x.to("tpu").mean(), x.float().mean(), "BF16_OUT")
    assert_close(x.to("tpu").softmax(1), x.float().softmax(1), "BF16_OUT")


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_sorting_reaches_the_ends_of_the_range(dtype: torch.dtype) -> None:
    ends = torch.iinfo(dtype)
    x = torch.tensor([3, ends.max, 1, ends.min, 3, 1, ends.max]).to(dtype)
    same(lambda x: x.sort(stable=True), x, "EXACT")
    same(lambda x: x.sort(stable=True, descending=True), x, "EXACT")
    same(lambda x: (x.topk(3).values, x.kthvalue(2).values), x, "EXACT")


def test_topk_points_at_what_it_returns() -> None:
    x = torch.tensor([[NAN, 1.0, INF, 1.0, -INF, NAN]], device="tpu")
    for k in (0, 1, 4, 6):
        for largest in (True, False):
            values, indices = x.topk(k, largest=largest)
            assert_close(x.gather(1, indices), values, "EXACT")
            assert indices.unique().numel() == k


def test_safe_softmax_of_a_masked_row_is_zero() -> None:
    x = torch.tensor([[-INF, -INF], [0.0, -INF]])
    same(lambda x: torch.ops.aten._safe_softmax(x, 1), x)
