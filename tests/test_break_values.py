"""Cases that once gave a wrong number, a recursion or an abort of the process."""

from __future__ import annotations

import math

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_mask_times_nan_stays_nan(dtype: torch.dtype) -> None:
    mask, values = torch.tensor([False, True]), torch.tensor([math.inf, math.nan], dtype=dtype)
    assert (mask.to("tpu") * values.to("tpu")).isnan().tolist() == [True, True]


def test_mask_over_a_row_of_zeros_is_nan() -> None:
    mask, row = torch.tensor([[False, True], [True, False]]), torch.tensor([0, 0])
    got = mask.to("tpu") / row.to("tpu")
    torch.testing.assert_close(got.cpu(), mask / row, equal_nan=True)


def test_the_order_of_complex_numbers_is_refused() -> None:
    x = torch.ones(3, device="tpu") * 1j
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.nn.functional.hardtanh(x)


@pytest.mark.parametrize("op", [torch.softmax, torch.sort, torch.argsort])
@pytest.mark.parametrize(("shape", "dim"), [((3, 4), 2), ((3, 4), -3), ((), 1)])
def test_a_dimension_out_of_range_is_refused(op: object, shape: tuple[int, ...], dim: int) -> None:
    with pytest.raises(IndexError, match="Dimension out of range"):
        op(torch.ones(shape, device="tpu"), dim)  # type: ignore[operator]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_division_by_a_row_or_column_is_rounded_once(dtype: torch.dtype) -> None:
    x = torch.arange(1, 200, dtype=dtype).reshape(-1, 1).repeat(1, 2)
    column = x.to("tpu")[:, :1]
    assert (x.to("tpu") / column == 1).all().item()
    assert torch.equal((x.T.to("tpu") / column.T[0]).cpu(), x.T / x[:, 0])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_labels_after_the_first_minus_one_do_not_count(reduction: str) -> None:
    x, target = torch.randn(2, 4), torch.tensor([[3, 0, -1, 1], [0, 1, 2, -1]])
    results = []
    for device in ("cpu", "tpu"):
        given = x.clone().to(device).requires_grad_()
        loss = torch.nn.functional.multilabel_margin_loss(
            given, target.to(device), reduction=reduction
        )
        (slope,) = torch.autograd.grad(loss.sum(), given)
        assert slope is not None
        results.append((loss.detach().cpu(), slope.cpu()))
    torch.testing.assert_close(*results)
