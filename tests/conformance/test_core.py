"""The operators behind torch's core-tagged packets, on the device."""

import pytest

from .expectations import CORE, surprise
from .judge import judge
from .known_failures import KNOWN_FAILURES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", CORE)
def test_core(name: str) -> None:
    verdict = judge(name, "tpu", 3)
    news = surprise(verdict.op, verdict.dtype, verdict.failure)
    assert news is None, news


def test_few_core_operators_wait_for_an_algorithm() -> None:
    assert len({op for op, _ in KNOWN_FAILURES if op in CORE}) <= 25


def test_core_list_is_whole() -> None:
    assert len(set(CORE)) == 140
