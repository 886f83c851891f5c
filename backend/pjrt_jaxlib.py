"""The private surface of jaxlib this package uses, with the differences between 0.10 and 0.12 removed.

Everything is feature-detected. Nothing here may run code that imports jax: several jaxlib calls do so behind
the caller's back, so only the ones measured to be free of it are used, and the single exception is guarded.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 and the float8 types with numpy)
import numpy as np

# XLA reads the level when it first logs; its INFO lines describe every client start.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from jaxlib import _hlo, _jax, xla_client  # noqa: E402

_REPLICATED = _hlo.HloSharding.replicate()
if not hasattr(_jax.SingleDeviceSharding, "_to_xla_hlo_sharding"):
    # jaxlib 0.10 asks Python for this when it puts an array; jax installs its own if it is imported later.
    _jax.SingleDeviceSharding._to_xla_hlo_sharding = lambda self, rank: _REPLICATED


class Abstract:
    """What jaxlib calls an aval: any object with these three attributes."""

    __slots__ = ("dtype", "shape", "weak_type")

    def __init__(self, shape: Sequence[int], dtype: np.dtype) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self.weak_type = False


def sharding(device: Any) -> Any:
    return _jax.SingleDeviceSharding(device)


def device_list(device: Any) -> Any:
    return _jax.DeviceList((device,))


def put(array: np.ndarray, device: Any, placement: Any) -> Any:
    """Copy host memory to a device. The source is free when this returns."""
    aval = Abstract(array.shape, array.dtype)
    semantics = _jax.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
    return _jax.batched_device_put(aval, placement, [array], [device], True, True, semantics, True)


def copy_to_device(value: Any, devices: Any, placement: Any) -> Any:
    # DONATE_INPUT crashes between CPU devices, so a copy is always a copy.
    copy = _jax.ArrayCopySemantics.ALWAYS_COPY
    return _jax.batched_copy_array_to_devices_with_sharding(
        [value], [devices], [placement], [copy]
    )[0]


def result_handler(shape: Sequence[int], dtype: np.dtype, placement: Any) -> Any:
    aval = Abstract(shape, dtype)
    try:
        # Without this jaxlib 0.10 asks for a method that only jax adds.
        return _jax.array_result_handler(aval, placement, True, _skip_checks=True)
    except TypeError:
        return _jax.array_result_handler(aval, placement, True)


class _RefuseJax:
    """A finder that refuses `jax` on threads inside `without_jax`, and nothing elsewhere."""

    def __init__(self) -> None:
        self.active = threading.local()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if getattr(self.active, "on", False) and name.partition(".")[0] == "jax":
            raise ModuleNotFoundError(f"{name} is not imported by the device runtime", name=name)


_refuse_jax = _RefuseJax()


def to_numpy(value: Any) -> np.ndarray:
    """Fetch through the runtime's own transfer, for devices whose memory the host cannot read."""
    # The array caches its host copy, so the cache is left on a clone that dies here.
    value = value.clone()
    if hasattr(value, "_to_np_array_did_copy"):
        return value._to_np_array_did_copy()[0]
    if _refuse_jax not in sys.meta_path:
        sys.meta_path.insert(0, _refuse_jax)  # type: ignore[arg-type]
    _refuse_jax.active.on = True
    try:
        return value._single_device_array_to_np_array_did_copy()[0]
    finally:
        _refuse_jax.active.on = False


_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
# Where DLTensor starts in DLManagedTensor and in DLManagedTensorVersioned.
_DLTENSOR_OFFSET = {b"dltensor": 0, b"dltensor_versioned": 32}
_BYTE_OFFSET = 40


def host_pointer(value: Any) -> int:
    """Address of an array's bytes; `unsafe_buffer_pointer` would import jax, DLPack does not."""
    block_until_ready(value)
    capsule = _jax.buffer_to_dlpack_managed_tensor(value)
    name = _capsule_name(capsule)
    tensor = _capsule_pointer(capsule, name) + _DLTENSOR_OFFSET[name]
    data = ctypes.c_void_p.from_address(tensor).value or 0
    return data + ctypes.c_uint64.from_address(tensor + _BYTE_OFFSET).value


make_cpu_client = xla_client.make_cpu_client
JaxRuntimeError = _jax.JaxRuntimeError
CompileOptions = _jax.CompileOptions
consume_with_handlers = _jax.ExecuteResults.consume_with_handlers
block_until_ready = _jax.ArrayImpl.block_until_ready
is_ready = _jax.ArrayImpl.is_ready
