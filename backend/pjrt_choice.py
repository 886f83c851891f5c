"""Which runtime this process will use. Imports no jaxlib, so that asking is cheap."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

_GOOGLE = "0x1ae0"
# PCI device ids of v2/v3, v4, v5p, v5e, v6e and tpu7x, as jax's hardware_utils lists them.
_CHIPS = frozenset({"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"})
_PCI = Path("/sys/bus/pci/devices")


@dataclass(frozen=True)
class Choice:
    """library: the PJRT plugin to load, None for the CPU client inside jaxlib."""

    library: Path | None
    cpu_devices: int = 1

    @property
    def plugin_name(self) -> str:
        # XLA and jax know libtpu by this name; another plugin must not answer to it.
        is_libtpu = self.library is not None and self.library.name.startswith("libtpu")
        return "tpu" if is_libtpu else "tpu_kernels"


def chip_present(pci: Path = _PCI) -> bool:
    """Is a TPU attached to this machine's PCI bus?"""
    return any(_is_chip(entry) for entry in pci.glob("*"))


def _is_chip(entry: Path) -> bool:
    try:
        vendor, device = (entry / "vendor").read_text(), (entry / "device").read_text()
    except OSError:
        return False
    return vendor.strip() == _GOOGLE and device.strip() in _CHIPS


def choose() -> Choice:
    """TPU_KERNELS_CPU=1, then TPU_LIBRARY_PATH, then libtpu if there is a chip, then the CPU."""
    cpu = Choice(None, _cpu_devices())
    if os.environ.get("TPU_KERNELS_CPU") == "1":
        return cpu
    if library := os.environ.get("TPU_LIBRARY_PATH"):
        return Choice(Path(library).expanduser())
    return Choice(libtpu_path()) if chip_present() else cpu


def libtpu_path() -> Path:
    """libtpu.so of the installed package, found without importing the package."""
    spec = importlib.util.find_spec("libtpu")
    for folder in (spec and spec.submodule_search_locations) or ():
        library = Path(folder) / "libtpu.so"
        if library.exists():
            return library
    raise RuntimeError(
        "a TPU needs libtpu, which is not installed: pip install 'tpu_kernels[tpu]', "
        "or set TPU_KERNELS_CPU=1 to run on the CPU"
    )


def _cpu_devices() -> int:
    text = os.environ.get("TPU_KERNELS_CPU_DEVICES", "1")
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"TPU_KERNELS_CPU_DEVICES must be a positive integer, got {text!r}")
    return int(text)
