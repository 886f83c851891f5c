"""Operators that fail on device "tpu", and why. Strict: one that passes must leave this file."""

from __future__ import annotations

# {reason: operators in float32, or "operator:dtype"}
_BY_REASON: dict[str, str] = {}


def _expand() -> dict[tuple[str, str], str]:
    known: dict[tuple[str, str], str] = {}
    for reason, names in _BY_REASON.items():
        for entry in names.split():
            op, _, dtype = entry.partition(":")
            key = (op, dtype or "float32")
            if key in known:
                raise ValueError(f"{key} is listed twice")
            known[key] = reason
    return known


KNOWN_FAILURES: dict[tuple[str, str], str] = _expand()
