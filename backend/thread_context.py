"""What a thread has set that programs depend on; every key of the thread begins with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Context:
    """options: XLA options by name, later ones win; precision: of float32 contractions, or None."""

    options: tuple[tuple[str, object], ...] = ()
    precision: str | None = None

    def fingerprint(self) -> tuple[tuple[str, object], ...]:
        return tuple(sorted(dict(self.options).items(), key=lambda item: item[0]))


class _Thread(threading.local):
    context = Context()


_thread = _Thread()
_words: dict[tuple, int] = {((), None): 0}
_lock = threading.Lock()


def current() -> Context:
    return _thread.context


@contextmanager
def extended(**changes: Any) -> Iterator[None]:
    """Change this thread's context inside a block."""
    before = _thread.context
    _enter(replace(before, **changes))
    try:
        yield
    finally:
        _enter(before)


def _enter(context: Context) -> None:
    from . import device  # the core may be loaded by the first use inside the block

    _thread.context = context
    with _lock:
        key = (context.fingerprint(), context.precision)
        word = _words.setdefault(key, len(_words))
    core = device.load_core()
    assert core is not None
    core.set_thread_context(word)
