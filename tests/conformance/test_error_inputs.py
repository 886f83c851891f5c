"""Exceptions of the device have the types of the CPU's: the core operators, by hand all."""

import pytest

from .errors import judge_errors
from .expectations import CORE, EXCLUDED
from .known_failures import KNOWN_FAILURES
from .samples import database, dtype_of

pytestmark = pytest.mark.slow


def refuse(names: list[str]) -> int:
    """Assert for each operator; the number of wrong inputs."""
    judged = {name: judge_errors(name, "tpu") for name in names}
    lines = [f"{name}: {line}" for name, (_, lines) in judged.items() for line in lines]
    assert not lines, "\n".join(lines)
    return sum(tried for tried, _ in judged.values())


def test_core_refuses_what_the_cpu_refuses() -> None:
    assert refuse(CORE) > 100


@pytest.mark.by_hand
def test_all_refuse_what_the_cpu_refuses() -> None:
    unlowered = {op for op, _ in KNOWN_FAILURES}
    names = [name for name in database() if name not in unlowered | EXCLUDED.keys()]
    assert all(dtype_of(database()[name]) for name in names)
    assert refuse(names) > 500
