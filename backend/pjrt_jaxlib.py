"""The private surface of jaxlib that this package uses, made one for jaxlib 0.10 to 0.12.

Everything is feature-detected. Several jaxlib calls import jax behind the caller's back; only those
measured not to are used here, but for one, which is guarded (`to_numpy`).
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 and the float8 types with numpy)
import numpy as np
import torch

from tpu_kernels.errors import VersionMismatch

# XLA reads the level when it first logs; below 2 it describes every client it starts.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# Kept equal to constraints.txt by a test.
KNOWN_GOOD = {"jaxlib": "0.10.2", "libtpu": "0.0.42.1", "torch": "2.13.0"}


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def build() -> str:
    """Names jaxlib's compiler exactly: its wheel's record of files, which lists their digests."""
    record = distribution("jaxlib").read_text("RECORD")
    if record is None:
        file = Path(_jax.__file__).with_name("libjax_common.so").stat()
        record = f"{file.st_size} {file.st_mtime_ns}"
    return hashlib.sha256(record.encode()).hexdigest()


def version_mismatch(step: str, error: Exception, plugin: str = "") -> VersionMismatch:
    """plugin: the file name of the PJRT plugin in use, if any."""
    good = ", ".join(f"{name} {number}" for name, number in KNOWN_GOOD.items())
    loaded = f" (plugin {plugin})" if plugin else ""
    return VersionMismatch(
        f"jaxlib {installed('jaxlib')}, libtpu {installed('libtpu')}{loaded} and torch "
        f"{torch.__version__} do not work together: {step} failed with "
        f"{type(error).__name__}: {error}. A set known to work: {good}."
    )


try:
    from jaxlib import _hlo, _jax, xla_client  # type: ignore[attr-defined]

    ArrayImpl = _jax.ArrayImpl
    CompileOptions = _jax.CompileOptions
    DeviceAssignment = _jax.DeviceAssignment
    DeviceList = _jax.DeviceList
    JaxRuntimeError = _jax.JaxRuntimeError
    Sharding = _jax.SingleDeviceSharding
    block_until_ready = _jax.ArrayImpl.block_until_ready
    consume_with_handlers = _jax.ExecuteResults.consume_with_handlers
    is_ready = _jax.ArrayImpl.is_ready
    make_cpu_client = xla_client.make_cpu_client
    _ALWAYS_COPY = _jax.ArrayCopySemantics.ALWAYS_COPY
    _COPY_NOW = _jax.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
    _ZERO_COPY = _jax.HostBufferSemantics.ZERO_COPY
    _batched_copy = _jax.batched_copy_array_to_devices_with_sharding
    _batched_put = _jax.batched_device_put
    _to_dlpack = _jax.buffer_to_dlpack_managed_tensor
    _REPLICATED = _hlo.HloSharding.replicate()
except (ImportError, AttributeError) as error:
    raise version_mismatch("importing jaxlib", error) from error

if not hasattr(Sharding, "_to_xla_hlo_sharding"):
    # jaxlib 0.10 calls this to put an array; jax sets its own when it is imported later.
    Sharding._to_xla_hlo_sharding = lambda self, rank: _REPLICATED


class Abstract:
    """What jaxlib calls an aval: any object with these three attributes."""

    __slots__ = ("dtype", "shape", "weak_type")

    def __init__(self, shape: Sequence[int], dtype: np.dtype) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self.weak_type = False


def open_plugin(name: str, library: Path) -> None:
    """Load a PJRT C-API plugin and initialize it. Raises OSError when it cannot be loaded."""
    if not xla_client.pjrt_plugin_loaded(name):
        try:
            xla_client.load_pjrt_plugin_dynamically(name, str(library))
        except JaxRuntimeError as error:
            raise OSError(str(error)) from error
    if not xla_client.pjrt_plugin_initialized(name):
        xla_client.initialize_pjrt_plugin(name)


def make_plugin_client(name: str) -> Any:
    return xla_client.make_c_api_client(name, {})


def compile_options(overrides: Mapping[str, object], device_id: int) -> Any:
    """Options of a one-device executable. Without the assignment XLA picks device 0."""
    options = CompileOptions()
    options.env_option_overrides = list(overrides.items())
    assignment = DeviceAssignment.create(np.array([[device_id]], np.int32))
    options.device_assignment = assignment
    options.executable_build_options.device_assignment = assignment
    return options


def serialize(executable: Any) -> bytes | None:
    """The executable's bytes, None where a plugin cannot give them."""
    try:
        return executable.serialize()
    except JaxRuntimeError:
        return None


def memory_analysis(executable: Any) -> dict[str, int]:
    """Bytes of arguments, outputs, temporaries, code and so on, as the compiler counted them."""
    stats = executable.get_compiled_memory_stats()
    fields = [name for name in dir(stats) if name.endswith("_in_bytes")]
    return {name.removesuffix("_in_bytes"): getattr(stats, name) for name in fields}


def put(array: np.ndarray, device: Any, sharding: Any) -> Any:
    """Copy host memory to a device; the source is free when this returns."""
    aval = Abstract(array.shape, array.dtype)
    return _batched_put(aval, sharding, [array], [device], True, True, _COPY_NOW, True)


def put_in_place(array: np.ndarray, device: Any, sharding: Any) -> Any:
    """Use suitably aligned host memory as it is, and keep it alive; else copy it."""
    aval = Abstract(array.shape, array.dtype)
    return _batched_put(aval, sharding, [array], [device], True, False, _ZERO_COPY, True)


def copy_to_device(value: Any, devices: Any, sharding: Any) -> Any:
    # ALWAYS_COPY: a donating copy between CPU devices crashes the process.
    return _batched_copy([value], [devices], [sharding], [_ALWAYS_COPY])[0]


def result_handler(shape: Sequence[int], dtype: np.dtype, sharding: Any) -> Any:
    aval = Abstract(shape, dtype)
    try:
        # jaxlib 0.10 would otherwise call a method that only jax adds.
        return _jax.array_result_handler(aval, sharding, True, _skip_checks=True)
    except TypeError:
        return _jax.array_result_handler(aval, sharding, True)


def device_of(value: Any) -> Any:
    return value._sharding._device


def host_pointer(value: Any) -> int:
    """Address of an array in host memory. `unsafe_buffer_pointer` would import jax."""
    block_until_ready(value)
    return torch.from_dlpack(_to_dlpack(value)).data_ptr()


class _RefuseJax:
    """A finder that refuses jax on the threads that ask it to, and nothing elsewhere."""

    def __init__(self) -> None:
        self._threads = threading.local()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if getattr(self._threads, "refusing", False) and name.partition(".")[0] == "jax":
            raise ModuleNotFoundError(f"{name}: the device runtime runs without it", name=name)

    @contextmanager
    def here(self) -> Iterator[None]:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        self._threads.refusing = True
        try:
            yield
        finally:
            self._threads.refusing = False


_refuse_jax = _RefuseJax()


def to_numpy(value: Any) -> np.ndarray:
    """A private copy in host memory, through the device's own transfer."""
    # An array keeps the host copy it was asked for, so a clone that dies here is asked.
    value = value.clone()
    if hasattr(value, "_to_np_array_did_copy"):
        array, copied = value._to_np_array_did_copy()
    else:
        with _refuse_jax.here():
            array, copied = value._single_device_array_to_np_array_did_copy()
    return array if copied else array.copy()


def make_topology(name: str, bounds: Mapping[str, Any]) -> Any:
    return xla_client.make_tfrt_tpu_c_api_device_topology(name, **bounds)


def parse(text: str) -> Any:
    """An MLIR module, for the few calls that do not take text."""
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, sdy, stablehlo

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    stablehlo.register_dialect(context)
    chlo.register_dialect(context)
    sdy.register_dialect(context)
    with context:
        try:
            return ir.Module.parse(text)
        except ir.MLIRError as error:
            raise ValueError(f"not a StableHLO module: {error}") from error


def hlo_text(executable: Any) -> str:
    """The optimized HLO, or "" where this jaxlib cannot read what a newer plugin made."""
    try:
        return "\n".join(module.to_string() for module in executable.hlo_modules())
    except JaxRuntimeError:
        return ""
