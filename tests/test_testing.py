"""The tolerance policies: what each accepts, what it refuses, and what it says then."""

import math
from types import SimpleNamespace

import pytest
import torch

from tpu_kernels import testing
from tpu_kernels.testing import POLICIES, assert_close

INF, NAN = math.inf, math.nan


def off_by(
    relative: float, outside: int = 1000, n: int = 1000
) -> tuple[torch.Tensor, torch.Tensor]:
    """(got, want): n ones, of which the first `outside` are off by `relative`."""
    want = torch.ones(n, dtype=torch.float64)
    got = want.clone()
    got[:outside] += relative
    return got, want


# policy, relative error, elements of 1000 that have it, accepted
BOUNDS = [
    ("EXACT", 1e-15, 1, False),
    ("FP64", 0.9e-9, 1000, True),
    ("FP64", 1.2e-9, 1, False),
    ("FP32", 0.9e-5, 1000, True),
    ("FP32", 0.9e-4, 1, True),
    ("FP32", 0.9e-4, 2, False),
    ("FP32", 1.2e-4, 1, False),
    ("FP32_ACCUM", 0.9e-4, 1000, True),
    ("FP32_ACCUM", 0.9e-3, 1, True),
    ("FP32_ACCUM", 0.9e-3, 2, False),
    ("FP32_ACCUM", 1.2e-3, 1, False),
    ("BF16_OUT", 7.9e-3, 1000, True),
    ("BF16_OUT", 1.5e-2, 10, True),
    ("BF16_OUT", 1.5e-2, 11, False),
    ("BF16_OUT", 1.7e-2, 1, False),
    ("BF16_ACCUM", 2.5e-2, 1000, True),  # 1.6e-2 relative and 1e-2 of the rms
    ("BF16_ACCUM", 9.9e-2, 10, True),
    ("BF16_ACCUM", 9.9e-2, 11, False),
    ("BF16_ACCUM", 10.1e-2, 1, False),
    ("FP16_OUT", 0.9e-3, 1000, True),
    ("FP16_OUT", 1.9e-3, 10, True),
    ("FP16_OUT", 1.9e-3, 11, False),
    ("FP16_OUT", 2.1e-3, 1, False),
]


@pytest.mark.parametrize(("policy", "relative", "outside", "accepted"), BOUNDS)
def test_bounds(policy: str, relative: float, outside: int, accepted: bool) -> None:
    got, want = off_by(relative, outside)
    if accepted:
        assert_close(got, want, policy)
    else:
        with pytest.raises(AssertionError, match=f"under policy {policy}"):
            assert_close(got, want, policy)


def test_every_policy_has_its_name() -> None:
    assert set(POLICIES) == {case[0] for case in BOUNDS} | {"CURVE"}
    for name, policy in POLICIES.items():
        assert policy is getattr(testing, name)


def test_rms_of_the_reference_scales_the_absolute_part() -> None:
    want = torch.tensor([0.0, 100.0, 100.0, 100.0])
    got = want + torch.tensor([0.8, 0.0, 0.0, 0.0])  # the rms is 86.6
    assert_close(got, want, "BF16_ACCUM")
    with pytest.raises(AssertionError, match=r"1 of 4 elements \(25.00%\)"):
        assert_close(got + torch.tensor([0.1, 0.0, 0.0, 0.0]), want, "BF16_ACCUM")


def test_curve_judges_steps_by_their_place() -> None:
    want = [2.0] * 60
    close, later, end = want.copy(), want.copy(), want.copy()
    close[19], later[19], end[50] = 2.0019, 2.0021, 9.0
    close[49] = 2.019
    assert_close(close, want, "CURVE")
    assert_close(end, want, "CURVE")
    with pytest.raises(AssertionError, match=r"the first 20 within rtol=0.001.*at \(19,\)"):
        assert_close(later, want, "CURVE")


def test_shape_and_dtype_come_before_values() -> None:
    with pytest.raises(AssertionError, match=r"shape is \(2,\), expected \(2, 1\)"):
        assert_close(torch.zeros(2), torch.ones(2, 1))
    with pytest.raises(AssertionError, match="dtype is torch.float64, expected torch.float32"):
        assert_close(torch.zeros(2).double(), torch.ones(2))


def test_strides_are_compared_when_asked() -> None:
    got, want = torch.zeros(2, 3), torch.zeros(3, 2).t()
    assert_close(got, want)
    with pytest.raises(AssertionError, match=r"strides are \(3, 1\), expected \(1, 2\)"):
        assert_close(got, want, stride=True)
    # Strides of dimensions of one element say nothing.
    assert_close(torch.zeros(1, 3), torch.zeros(1, 3).as_strided((1, 3), (7, 1)), stride=True)


def test_a_wide_reference_is_allowed_for_sixteen_bit_results_only() -> None:
    want = torch.tensor([1.0, 1 / 3])
    assert_close(want.bfloat16(), want, "BF16_OUT")
    assert_close(want.half(), want.double(), "FP16_OUT")
    with pytest.raises(AssertionError, match="dtype is torch.float16"):
        assert_close(want.half(), want, "BF16_OUT")
    with pytest.raises(AssertionError, match="dtype is torch.float32"):
        assert_close(want, want.bfloat16(), "BF16_OUT")


def test_integers_are_exact_under_every_policy() -> None:
    big = torch.tensor([2**62])
    with pytest.raises(AssertionError, match="under policy EXACT"):
        assert_close(big + 1, big, "BF16_ACCUM")
    assert_close(torch.tensor([True]), torch.tensor([True]))


def test_not_finite_values_must_be_the_same() -> None:
    assert_close([NAN, INF, -INF, 1.0], [NAN, INF, -INF, 1.0])
    for got, want in [(NAN, 1.0), (1.0, NAN), (INF, -INF), (1.0, INF), (INF, 3e38), (NAN, INF)]:
        with pytest.raises(AssertionError, match=r"worst at \(1,\)"):
            assert_close([1.0, got], [1.0, want], "BF16_ACCUM")


def test_complex_numbers_by_their_distance() -> None:
    want = torch.tensor([3 + 4j])
    assert_close(want + 4e-5j, want)
    with pytest.raises(AssertionError, match="FP32"):
        assert_close(want + 6e-4j, want)


def test_scalars_and_empty_tensors() -> None:
    assert_close(torch.tensor(1.0), torch.tensor(1.0))
    assert_close(torch.zeros(0, 3), torch.zeros(0, 3), "EXACT", stride=True)
    with pytest.raises(AssertionError, match=r"worst at \(\): got 2.0, expected 1.0"):
        assert_close(torch.tensor(2.0), torch.tensor(1.0))


def test_the_message_names_the_worst_element() -> None:
    want = torch.ones(10, 10)
    got = want.clone()
    got[3, 4], got[5, 6] = 1.5, 1.25
    with pytest.raises(AssertionError) as failure:
        assert_close(got, want, "FP32")
    assert str(failure.value) == (
        "values differ under policy FP32 (99.9% within rtol=1e-05, atol=1e-06): 2 of 100 "
        "elements (2.00%) are outside; worst at (3, 4): got 1.5, expected 1.0, "
        "allowed difference 1.1e-05"
    )


@pytest.fixture
def stats(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The device's counters, under the test's control."""
    counters = SimpleNamespace(
        recorded=5, hits=4, misses=1, compiles=1, executions=5, fallbacks=0, transfers=2
    )
    module = SimpleNamespace(synchronize=lambda: None, stats=lambda: counters)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    return counters


def test_program_count_is_of_the_block_alone(stats: SimpleNamespace) -> None:
    with testing.program_count() as counts:
        stats.compiles += 2
        stats.recorded += 3
    stats.compiles += 10
    assert (counts.compiles, counts.recorded, counts.executions) == (2, 3, 0)


def test_no_compiles(stats: SimpleNamespace) -> None:
    with testing.no_compiles():
        stats.hits += 1
    with pytest.raises(AssertionError, match="2 programs were compiled, expected none"):
        with testing.no_compiles():
            stats.compiles += 2
