"""Exceptions of the device have the types of the CPU's: the core operators, by hand all."""

import pytest

from .errors import KNOWN_DIFFERENCES, judge_errors
from .expectations import CORE, EXCLUDED
from .samples import database

pytestmark = pytest.mark.slow


def check(name: str) -> int:
    tried, differences = judge_errors(name, "tpu")
    assert bool(differences) == (name in KNOWN_DIFFERENCES), differences
    return tried


def test_core_refuses_what_the_cpu_refuses() -> None:
    assert sum(check(name) for name in CORE) > 100


@pytest.mark.by_hand
def test_all_refuse_what_the_cpu_refuses() -> None:
    failures = {}
    for name in database().keys() - EXCLUDED.keys():
        differences = judge_errors(name, "tpu")[1]
        if bool(differences) != (name in KNOWN_DIFFERENCES):
            failures[name] = differences
    assert not failures, "\n".join(f"{name}: {text}" for name, text in sorted(failures.items()))
