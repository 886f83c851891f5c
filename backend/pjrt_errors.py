"""What the runtime says, in the words of this package: what was given, the rule, the remedy."""

from __future__ import annotations

import re
from pathlib import Path

from tpu_kernels.errors import DeviceOutOfMemory, DonatedTensor

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
# "allocating 1024 bytes", "to allocate 4.00G", "temporaries (149.06G)", "Used 74.58G of"
_ASKED = re.compile(r"(?:allocat\w+ |temporaries \(|Used )([\d.]+) ?([KMGT]?)")


def forked() -> RuntimeError:
    return RuntimeError(
        "the tpu device was started in the parent process and cannot be used in a forked child: "
        "start the child with multiprocessing.get_context('spawn')"
    )


def translate(error: Exception, where: str, in_use: int | None = None) -> Exception:
    """The exception to raise for one from the runtime.

    where: the device, as users write it ("tpu:0"). in_use: bytes allocated on it, if known.
    """
    text = str(error)
    if "RESOURCE_EXHAUSTED" in text:
        return DeviceOutOfMemory(_out_of_memory(text, where, in_use))
    if "deleted or donated" in text or "has been deleted" in text or "donate" in text:
        return DonatedTensor(f"a buffer on {where} was used after it had been donated: {text}")
    return RuntimeError(f"{where}: {text}")


def _out_of_memory(text: str, where: str, in_use: int | None) -> str:
    found = _ASKED.search(text)
    asked = ""
    if found:
        amount = int(float(found.group(1)) * _UNITS[found.group(2)])
        asked = f" Tried to allocate {size(amount)}."
    held = "" if in_use is None else f" {size(in_use)} are in use."
    return f"{where} is out of memory.{asked}{held} The runtime says: {text}"


def size(count: int) -> str:
    """A byte count as "1.50 GiB (1610612736 bytes)"."""
    amount, unit = float(count), "bytes"
    for name in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, name
    return f"{count} bytes" if unit == "bytes" else f"{amount:.2f} {unit} ({count} bytes)"


def plugin_will_not_load(library: Path, error: Exception) -> RuntimeError:
    """The plugin could not be opened, or is not one."""
    if "GetPjrtApi" in str(error):
        rule = "it is a shared library, but not a PJRT plugin (no GetPjrtApi)"
    else:
        rule = "the system's loader refused it"
    return RuntimeError(
        f"the PJRT plugin {library} will not load: {rule}. Set TPU_LIBRARY_PATH to a PJRT plugin "
        f"for this machine, or unset it. The loader says: {error}"
    )


def plugin_will_not_start(library: Path, error: Exception) -> RuntimeError:
    """The plugin loaded, but gave no client."""
    text = str(error)
    if "lockfile" in text or "already in use" in text:
        return RuntimeError(
            "the TPU is in use by another process: only one process at a time may open it. "
            "`sudo lsof /dev/accel* /dev/vfio/*` names that process; end it, or set "
            f"TPU_KERNELS_CPU=1 to run on the CPU. {library} says: {text}"
        )
    return RuntimeError(
        f"the PJRT plugin {library} loaded but found no device it can use: check that this "
        "machine has one and that this user may open /dev/accel* or /dev/vfio/*, or set "
        f"TPU_KERNELS_CPU=1 to run on the CPU. The plugin says: {text}"
    )
