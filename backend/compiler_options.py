"""Compiler options in force: our defaults and what the user adds in a context."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from . import device, thread_context

_excess_precision = False


def allow_excess_precision() -> bool:
    """May XLA keep more precision between fused 16-bit ops than torch, which rounds after each?"""
    return _excess_precision


def set_allow_excess_precision(allowed: bool) -> None:
    """For the process; programs of either setting are kept apart."""
    global _excess_precision
    _excess_precision = bool(allowed)
    core = device.load_core()
    assert core is not None
    core.set_excess_precision(_excess_precision)


_warned: set[str] = set()


@contextmanager
def custom_compiler_options(options: Mapping[str, object]) -> Iterator[None]:
    """Compile inside the block with XLA options, added to those of enclosing blocks.

    An option is part of a program's key. One that belongs to another platform (an `xla_tpu_*`
    option on the CPU client) enters the key and is otherwise ignored, with one warning.
    """
    with thread_context.extended(options=(*thread_context.current().options, *options.items())):
        yield


def fingerprint() -> tuple[tuple[str, object], ...]:
    """The user's options, as part of a key."""
    return thread_context.current().fingerprint()


def current(platform: str) -> dict[str, object]:
    """All options for a compile on `platform`."""
    options: dict[str, object] = {"xla_allow_excess_precision": _excess_precision}
    for name, value in fingerprint():
        if _foreign(name, platform):
            if name not in _warned:
                _warned.add(name)
                warnings.warn(f"compiler option {name} is ignored on {platform}", stacklevel=2)
            continue
        options[name] = value
    return options


def _foreign(name: str, platform: str) -> bool:
    others = {"cpu": ("xla_tpu_", "xla_gpu_"), "tpu": ("xla_cpu_", "xla_gpu_")}
    return name.startswith(others.get(platform, ()))
