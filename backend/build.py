"""Builds the C++ core with the installed torch's headers, once, and loads it.

The compiled core lies in a private directory under the user's cache, in a folder named for torch
version, Python tag and source hash. A wheel may carry one per torch minor in `prebuilt/`.
`python -m tpu_kernels.backend.build --output DIR` makes such a file.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch

NAME = "_tpu_core"
SOURCES = Path(__file__).parent / "csrc"
PREBUILT = Path(__file__).parent / "prebuilt"
_UNITS = ("core.cpp", "autocast.cpp")


def tag() -> str:
    """What a prebuilt core must match: torch's minor version and the Python tag."""
    minor = ".".join(torch.__version__.split("+")[0].split(".")[:2])
    return f"torch{minor}-{sys.implementation.cache_tag}-{sysconfig.get_platform()}"


def source_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def cache_directory() -> Path:
    """Where compiled cores are kept: TPU_KERNELS_CORE_DIR, or below the user's cache."""
    if chosen := os.environ.get("TPU_KERNELS_CORE_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tpu_kernels" / "core"


def _cached() -> Path:
    python = sys.implementation.cache_tag
    return cache_directory() / f"{torch.__version__}-{python}-{source_hash()}" / f"{NAME}.so"


def find() -> Path | None:
    """A core that is built already: in the wheel, else in the user's cache."""
    prebuilt = PREBUILT / f"{NAME}-{tag()}.so"
    if prebuilt.exists():
        return prebuilt
    cached = _cached()
    if not cached.exists():
        return None
    check_private(cache_directory())
    return cached


def load(path: Path) -> ModuleType:
    """Import a built core."""
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_file_location(NAME, str(path), loader=loader)
    if spec is None:
        raise ImportError(f"tpu_kernels: cannot load the device core {path}")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def build() -> Path:
    """The core for this torch and Python, compiled if needed. Raises RuntimeError saying why not.

    Processes that need it at the same time wait for the first to compile it.
    """
    path = find()
    if path is not None:
        return path
    target = _cached()
    with _locked(cache_directory()):
        if not target.exists():
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                made = Path(folder) / target.name
                compile_core(made)
                os.replace(made, target)
    return target


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(directory)
        handle = (directory / "lock").open("w")
    except OSError as error:
        raise RuntimeError(
            f"tpu_kernels: the device core cannot be kept in {directory} ({error.strerror}); set "
            "TPU_KERNELS_CORE_DIR to a directory that you can write"
        ) from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def check_private(directory: Path) -> None:
    """Refuse code from a directory that another user could have written."""
    status = directory.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise RuntimeError(
            f"tpu_kernels: {directory} must belong to user {os.geteuid()} with mode 0700 (found "
            f"owner {status.st_uid}, mode {status.st_mode & 0o777:04o}), since code is loaded from "
            "it; fix it with chown and chmod, or set TPU_KERNELS_CORE_DIR"
        )


def compiler() -> str:
    """The C++ compiler. Raises RuntimeError naming what is missing to build with."""
    found = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if found is None or shutil.which(found) is None:
        raise RuntimeError(
            "tpu_kernels: building the device core needs a C++ compiler, and none is on PATH; "
            "install one (Debian: apt-get install g++), set CXX, or use a wheel with a prebuilt "
            "core"
        )
    python = Path(sysconfig.get_path("include"))
    if not (python / "Python.h").exists():
        raise RuntimeError(
            f"tpu_kernels: building the device core needs Python.h, which is not in {python}; "
            "install Python's headers (Debian: apt-get install python3-dev), or use a wheel with "
            "a prebuilt core"
        )
    return found


def flags() -> list[str]:
    include = Path(torch.__file__).parent / "include"
    folders = [include, include / "torch" / "csrc" / "api" / "include"]
    return [
        "-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-w",
        f"-DTORCH_EXTENSION_NAME={NAME}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-I{folder}" for folder in folders), f"-I{sysconfig.get_path('include')}",
    ]  # fmt: skip


def compile_core(output: Path) -> None:
    """Compile the units side by side and link them."""
    tool = compiler()
    print(
        f"tpu_kernels: compiling the device core for torch {torch.__version__} (about a minute, "
        "once)",
        file=sys.stderr,
        flush=True,
    )
    objects = [output.with_name(f"{unit}.o") for unit in _UNITS]
    calls = [
        [tool, *flags(), "-c", str(SOURCES / unit), "-o", str(made)]
        for unit, made in zip(_UNITS, objects, strict=True)
    ]
    with ThreadPoolExecutor(len(calls)) as pool:
        list(pool.map(_run, calls))
    libraries = [f"-l{name}" for name in ("c10", "torch_cpu", "torch_python")]
    search = f"-L{Path(torch.__file__).parent / 'lib'}"
    _run([tool, "-shared", *map(str, objects), "-o", str(output), search, *libraries, "-Wl,-z,now"])


def _run(call: list[str]) -> None:
    done = subprocess.run(call, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(
            f"tpu_kernels: the device core did not compile (exit {done.returncode}). The compiler "
            f"said:\n{done.stderr.strip()[-4000:]}\nThe call was: {' '.join(call)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the device core for the installed torch.")
    parser.add_argument("--output", type=Path, help="folder for a core that a wheel carries")
    output = parser.parse_args().output
    if output is None:
        print(build())
        return
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{NAME}-{tag()}.so"
    shutil.copy(build(), path)
    print(path)


if __name__ == "__main__":
    main()
