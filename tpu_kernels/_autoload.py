"""What happens when torch is imported: as little as possible, and never an error."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

_active = False


def autoload() -> None:
    """torch's entry point `torch.backends`. `import torch` goes on whatever happens here."""
    try:
        if other_accelerator() and not _device().wanted():
            # Torch prefers a registered PrivateUse1 device over CUDA everywhere, so this user keeps
            # what they have. An explicit import must still work: forget that we were imported.
            for name in [n for n in sys.modules if n.partition(".")[0] == "tpu_kernels"]:
                del sys.modules[name]
            return
        activate()
    except Exception as error:
        print(f"tpu_kernels: the tpu device is off: {error}", file=sys.stderr)


def other_accelerator() -> bool:
    """Does torch have an accelerator of its own that works on this machine?"""
    return (
        torch.cuda.is_available() or torch.xpu.is_available() or torch.backends.mps.is_available()
    )


def activate() -> None:
    """Name the device and its module; load the core if it is built. Safe to call again."""
    global _active
    if _active:
        return
    _active = True
    torch.utils.rename_privateuse1_backend("tpu")
    from . import tpu

    torch._register_device_module("tpu", tpu)
    torch.set_autocast_dtype("tpu", torch.bfloat16)  # torch's own choice would be float16
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=False)
    torch.serialization.register_package(_BEFORE_TORCHS_OWN, _location, _restore)
    device = _device()
    if device.wanted():
        device.enable()
    else:
        device.load_core(compile_if_missing=False)


# torch registers PrivateUse1 devices with 23, and asks there whether a device is available.
_BEFORE_TORCHS_OWN = 15


def _location(storage: Any) -> str | None:
    """The tag that torch.save gives a storage of the device."""
    return f"tpu:{storage.device.index}" if storage.device.type == "tpu" else None


def _restore(storage: Any, location: str) -> Any:
    """Where torch.load puts it. Loading to "tpu" is using the device."""
    if location.partition(":")[0] != "tpu":
        return None
    place = torch.device(location)
    _device()._lazy_init()
    return storage.to(device=torch.device("tpu", place.index or 0))


def _device() -> ModuleType:
    from .backend import device

    return device
