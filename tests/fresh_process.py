"""Run Python text in a process of its own: a crash there is an exit code here."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What a developer's shell may set and a test must not inherit.
_SETTINGS = (
    "ALLOW_MULTIPLE_LIBTPU_LOAD",
    "LIBTPU_INIT_ARGS",
    "TORCH_TPU_",
    "TPU_KERNELS_CPU",
    "TPU_LIBRARY_PATH",
    "XLA_FLAGS",
)


def settings() -> dict[str, str]:
    """This process's environment without what changes the device."""
    return {k: v for k, v in os.environ.items() if not k.startswith(_SETTINGS)}


def python(text: str, timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
    """The finished process; env is added to the environment."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        cwd=ROOT,
        env=settings() | env,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def output(text: str, timeout: float = 120, **env: str) -> str:
    """What a process that must succeed printed."""
    done = python(text, timeout, **env)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
