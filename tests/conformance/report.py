"""A run of the operator database as a page of Markdown."""

from __future__ import annotations

import argparse
import datetime
import platform
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .expectations import EXCLUDED, surprise
from .known_failures import KNOWN_FAILURES


def write(path: Path, verdicts: list[dict], options: argparse.Namespace) -> int:
    """Write the report; 1 when an outcome is not the expected one."""
    news = {v["op"]: surprise(v["op"], v["dtype"], v["failure"]) for v in verdicts}
    surprises = {op: text for op, text in sorted(news.items()) if text}
    passed = [v for v in verdicts if not v["failure"]]
    known: dict[str, list[str]] = defaultdict(list)
    for verdict in verdicts:
        reason = KNOWN_FAILURES.get((verdict["op"], verdict["dtype"]))
        if verdict["failure"] and reason:
            known[reason].append(verdict["op"])
    dtype = options.dtype or "float32 (or what it takes first)"
    lines = [
        f'# torch\'s operator database on device "{options.device}"',
        "",
        f"{datetime.date.today()}, {_versions()}, the first {options.samples} samples of each",
        f"operator in {dtype}, forward and backward, against the CPU.",
        "",
        "| operators run | pass | known failures | surprises | samples | with gradients |",
        "|---|---|---|---|---|---|",
        f"| {len(verdicts)} | {len(passed)} | {sum(map(len, known.values()))} | {len(surprises)} "
        f"| {sum(v['executed'] for v in verdicts)} | {sum(v['backward'] for v in verdicts)} |",
        "",
        f"Not run, since torch has them on CUDA only: {', '.join(sorted(EXCLUDED))}.",
        "",
        *_section("Known failures, by reason", {k: ", ".join(sorted(v)) for k, v in known.items()}),
        *_section("Surprises", surprises),
    ]
    path.write_text("\n".join(lines).rstrip() + "\n")
    print(f"{len(passed)} of {len(verdicts)} pass, {len(surprises)} surprises: {path}")
    return 1 if surprises else 0


def _section(title: str, rows: dict[str, str]) -> list[str]:
    if not rows:
        return []
    return [f"## {title}", "", *(f"* {name}: {_line(text)}" for name, text in rows.items()), ""]


def _line(text: str) -> str:
    return " ".join(text.split())[:300]


def _versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for name in ("torch", "jaxlib", "libtpu", "tpu_kernels"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)
