"""What kind of device it is, and choosing one."""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple

import torch

from tpu_kernels.backend import device as _device
from tpu_kernels.backend.dtypes import TABLE


class DeviceProperties(NamedTuple):
    """total_memory is in bytes, 0 where the runtime does not say."""

    name: str
    total_memory: int
    multi_processor_count: int = 1


def get_device_properties(device: object = None) -> DeviceProperties:
    from tpu_kernels.backend import pjrt

    described = pjrt.client().device_description(_device.index_of(device))
    return DeviceProperties(described.kind, described.memory or 0)


def get_device_name(device: object = None) -> str:
    """The chip's kind, such as "TPU v5 lite"; "cpu" on the embedded CPU client."""
    return get_device_properties(device).name


def get_device_capability(device: object = None) -> dict[str, object]:
    return {"supported_dtypes": {row.torch for row in TABLE}}


def get_amp_supported_dtype() -> list[torch.dtype]:
    """dtypes that torch.autocast("tpu") may use; bfloat16 is the default."""
    return [torch.bfloat16, torch.float16, torch.float32]


def is_bf16_supported() -> bool:
    return True


class device:
    """Make a device current inside a block: `with torch.tpu.device(1):`."""

    def __init__(self, device: object) -> None:
        self.index = _device.index_of(device)
        self.before = -1

    def __enter__(self) -> None:
        if self.index >= 0:
            self.before = _device.current_device()
            _device.set_device(self.index)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.before >= 0:
            _device.set_device(self.before)


class device_of(device):
    """Make an object's device current inside a block; others leave it as it is."""

    def __init__(self, obj: object) -> None:
        place = getattr(obj, "device", None)
        on_device = isinstance(place, torch.device) and place.type == "tpu"
        super().__init__(place if on_device else -1)
