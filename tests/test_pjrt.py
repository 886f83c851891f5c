"""The embedded client: bytes in and out, programs, donation, options, errors as text."""

import ctypes
import gc
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from tpu_kernels.backend import cache, dtypes, pjrt, pjrt_choice, pjrt_errors
from tpu_kernels.backend import pjrt_jaxlib as jaxlib
from tpu_kernels.backend.pjrt_options import cpu_options, largest_tensor
from tpu_kernels.backend.pjrt_program import signature
from tpu_kernels.errors import DeviceOutOfMemory, DonatedTensor, Unsupported

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def client():
    return pjrt.client()


def module(arguments: str, result: str, *body: str) -> str:
    lines = "\n  ".join(body)
    return f"module {{ func.func public @main({arguments}) -> {result} {{\n  {lines}\n}} }}"


def addition(kind: str, donate: bool = False) -> str:
    alias = " {tf.aliasing_output = 0 : i32}" if donate else ""
    return module(
        f"%a: tensor<{kind}>{alias}, %b: tensor<{kind}>",
        f"tensor<{kind}>",
        f"%0 = stablehlo.add %a, %b : tensor<{kind}>",
        f"return %0 : tensor<{kind}>",
    )


# A 512-cubed product is milliseconds of work for the machine, and a compile is longer.
PRODUCT = module(
    "%a: tensor<512x512xf32>, %b: tensor<512x512xf32>",
    "tensor<512x512xf32>",
    "%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]"
    " : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>",
    "return %0 : tensor<512x512xf32>",
)


def aligned(count: int) -> torch.Tensor:
    """float32 ones at an address that XLA could use without a copy."""
    tensor = torch.ones(count)
    assert tensor.data_ptr() % 64 == 0
    return tensor


def some_bytes(row: dtypes.Row) -> np.ndarray:
    raw = np.random.default_rng(0).bytes(64)
    if row.torch is torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    return np.frombuffer(raw, row.numpy)


class TestTransfers:
    @pytest.mark.parametrize("row", dtypes.TABLE, ids=lambda row: row.hlo)
    def test_every_dtype_keeps_its_bytes(self, client, row):
        host = some_bytes(row)
        value = client.put(host, 0)
        back = client.to_host(value)
        assert back.dtype == host.dtype and back.shape == host.shape
        assert back.tobytes() == host.tobytes()

    @pytest.mark.parametrize("row", dtypes.TABLE, ids=lambda row: row.hlo)
    def test_every_dtype_passes_through_a_program(self, client, row):
        host = some_bytes(row)
        kind = f"tensor<{len(host)}x{row.hlo}>"
        deeper = f"tensor<1x{len(host)}x{row.hlo}>"
        program = client.compile(
            module(
                f"%a: {kind}",
                deeper,
                f"%0 = stablehlo.reshape %a : ({kind}) -> {deeper}",
                f"return %0 : {deeper}",
            ),
            0,
        )
        assert program.out_avals == [pjrt.Aval((1, len(host)), row.torch)]
        [result] = program([client.put(host, 0)])
        back = client.to_host(result)
        assert back.shape == (1, len(host)) and back.tobytes() == host.tobytes()

    @pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 1, 7)])
    def test_shapes(self, client, shape):
        host = np.random.default_rng(0).standard_normal(shape)
        back = client.to_host(client.put(host, 0))
        assert back.shape == shape and np.array_equal(back, host)

    def test_strides_of_every_kind(self, client):
        base = np.random.default_rng(0).standard_normal((4, 5, 6)).astype(np.float32)
        one = np.ones(1, np.float32)
        for host in (
            base.T,
            base[::-1],
            base[::2, :, ::-1],
            base.transpose(1, 0, 2),
            base[:, 1:3],
            np.lib.stride_tricks.as_strided(one, (3, 3), (0, 0)),
            np.frombuffer(b"\0" * 33, np.uint8)[1:].view(np.float32),
        ):
            assert np.array_equal(client.to_host(client.put(host, 0)), host)

    @pytest.mark.parametrize("count", [16, 1 << 20])
    def test_put_never_aliases_the_source(self, client, count):
        source = aligned(count)
        value = client.put(source.numpy(), 0)
        source.fill_(7)
        assert np.array_equal(client.to_host(value), np.ones(count, np.float32))
        assert client.host_pointer(value) != source.data_ptr()

    @pytest.mark.parametrize("count", [16, 1 << 20])
    def test_to_host_is_a_copy(self, client, count):
        value = client.put(np.ones(count, np.float32), 0)
        first = client.to_host(value)
        first[:] = 7
        assert np.array_equal(client.to_host(value), np.ones(count, np.float32))

    def test_host_pointer_reads_in_place(self, client):
        value = client.put(np.arange(8, dtype=np.float32), 0)
        address = client.host_pointer(value)
        assert address == client.host_pointer(value)
        seen = np.ctypeslib.as_array((ctypes.c_float * 8).from_address(address))
        assert seen.tolist() == list(range(8))

    @pytest.mark.parametrize("dtype", [np.int64, np.float64])
    def test_staging_is_written_by_its_owner(self, client, dtype):
        value, address = client.staging(np.dtype(dtype), 3, 0)
        memory = np.ctypeslib.as_array((ctypes.c_byte * 24).from_address(address)).view(dtype)
        program = client.compile(addition(f"3x{'i' if dtype is np.int64 else 'f'}64"), 0)
        for step in range(3):
            memory[:] = step
            assert client.to_host(program([value, value])[0]).tolist() == [2 * step] * 3

    def test_staging_outlives_everything_but_its_array(self, client):
        value, address = client.staging(np.dtype(np.float64), 1000, 0)
        gc.collect()
        ctypes.memset(address, 0, 8000)
        assert not client.to_host(value).any()

    @pytest.mark.parametrize("dtype", [">f4", "U1", "O", "M8[s]"])
    def test_dtypes_that_are_refused(self, client, dtype):
        with pytest.raises(Unsupported, match=r"put: numpy dtype .*; convert it to one of bool"):
            client.put(np.zeros(2, dtype), 0)


class TestPrograms:
    def test_results_and_hot_path(self, client):
        program = client.compile(addition("4xf32"), 0)
        value = client.put(np.arange(4, dtype=np.float32), 0)
        [result] = pjrt.consume_with_handlers(
            program.execute_sharded([value, value]), program.handlers
        )
        pjrt.block_until_ready(result)
        assert pjrt.is_ready(result)
        assert client.to_host(result).tolist() == [0, 2, 4, 6]
        assert program.in_avals == [pjrt.Aval((4,), torch.float32)] * 2

    def test_no_operands_and_several_results(self, client):
        text = module(
            "",
            "(tensor<2xi64>, tensor<bf16>, tensor<0x3xi1>)",
            "%0 = stablehlo.constant dense<[3, 4]> : tensor<2xi64>",
            "%1 = stablehlo.constant dense<1.5> : tensor<bf16>",
            "%2 = stablehlo.constant dense<> : tensor<0x3xi1>",
            "return %0, %1, %2 : tensor<2xi64>, tensor<bf16>, tensor<0x3xi1>",
        )
        first, second, third = map(client.to_host, client.compile(text, 0)([]))
        assert first.tolist() == [3, 4] and first.dtype == np.int64
        assert second == 1.5 and second.dtype == ml_dtypes.bfloat16
        assert third.shape == (0, 3)

    @pytest.mark.parametrize("count", [4, 1000, 20_000])
    def test_float32_keeps_nan_and_infinity(self, client, count):
        """At each of the three levels of optimisation."""
        kind = f"tensor<{count}xf32>"
        text = module(
            f"%a: {kind}, %b: {kind}",
            f"({kind}, {kind}, tensor<f32>, tensor<f32>, {kind})",
            "%low = stablehlo.constant dense<0xFF800000> : tensor<f32>",
            "%zero = stablehlo.constant dense<0.0> : tensor<f32>",
            f"%0 = stablehlo.maximum %a, %b : {kind}",
            f"%1 = stablehlo.minimum %a, %b : {kind}",
            "%2 = stablehlo.reduce(%a init: %low) applies stablehlo.maximum across dimensions ="
            f" [0] : ({kind}, tensor<f32>) -> tensor<f32>",
            "%3 = stablehlo.reduce(%b init: %zero) applies stablehlo.add across dimensions ="
            f" [0] : ({kind}, tensor<f32>) -> tensor<f32>",
            f"%4 = stablehlo.divide %b, %a : {kind}",
            f"return %0, %1, %2, %3, %4 : {kind}, {kind}, tensor<f32>, tensor<f32>, {kind}",
        )
        a, b = torch.full((count,), 2.0), torch.full((count,), 3.0)
        a[1], a[2], b[3] = float("nan"), 0.0, float("inf")
        program = client.compile(text, 0)
        got = program([client.put(a.numpy(), 0), client.put(b.numpy(), 0)])
        want = (torch.maximum(a, b), torch.minimum(a, b), a.max(), b.sum(), b / a)
        for mine, theirs in zip(got, want, strict=True):
            np.testing.assert_array_equal(client.to_host(mine), theirs.numpy())

    @pytest.mark.parametrize("count", [4, 1000, 20_000])
    def test_bfloat16_is_rounded_between_operations(self, client, count):
        kind = f"tensor<{count}xbf16>"
        text = module(
            f"%a: {kind}, %b: {kind}",
            kind,
            f"%0 = stablehlo.multiply %a, %a : {kind}",
            f"%1 = stablehlo.subtract %0, %b : {kind}",
            f"return %1 : {kind}",
        )
        a = np.full(count, 1 + 2**-7, ml_dtypes.bfloat16)
        program = client.compile(text, 0)
        [result] = program([client.put(a, 0), client.put(a * a, 0)])
        assert not client.to_host(result).any()

    def test_compiles_run_together_and_off_the_interpreter_lock(self, client):
        texts = [addition(f"{5000 + n}xf32") for n in range(4)]
        ticks = 0
        done = threading.Event()

        def tick() -> None:
            nonlocal ticks
            while not done.is_set():
                ticks += 1
                time.sleep(0.001)

        ticker = threading.Thread(target=tick)
        ticker.start()
        with ThreadPoolExecutor(4) as pool:
            programs = list(pool.map(lambda text: client.compile(text, 0), texts))
        done.set()
        ticker.join()
        assert [program.in_avals[0].shape for program in programs] == [
            (5000,), (5001,), (5002,), (5003,)
        ]  # fmt: skip
        assert ticks > 3

    def test_a_second_compile_comes_from_the_cache(self, client):
        if cache.info().directory is None:
            pytest.skip("the cache is off")
        text = addition("6xi32")
        client.compile(text, 0)
        hits, compiles = cache.info().hits, client.compiles
        program = client.compile(text, 0)
        assert (cache.info().hits, client.compiles) == (hits + 1, compiles)
        value = client.put(np.arange(6, dtype=np.int32), 0)
        assert client.to_host(program([value, value])[0]).tolist() == [0, 2, 4, 6, 8, 10]

    def test_a_cached_program_that_does_not_load_is_compiled(self, client, monkeypatch):
        rejected = []
        monkeypatch.setattr(cache, "load", lambda key: b"not an executable")
        monkeypatch.setattr(cache, "reject", lambda key, reason: rejected.append(reason))
        program = client.compile(addition("3xf32"), 0)
        value = client.put(np.ones(3, np.float32), 0)
        assert client.to_host(program([value, value])[0]).tolist() == [2, 2, 2]
        assert len(rejected) == 1


class TestDonation:
    """`tf.aliasing_output` on an operand gives its memory to the result."""

    @pytest.mark.parametrize("count", [16, 1 << 20])
    def test_in_place_from_put_and_from_a_result(self, client, count):
        program = client.compile(addition(f"{count}xf32", donate=True), 0)
        value = client.put(np.ones(count, np.float32), 0)
        one = client.put(np.ones(count, np.float32), 0)
        address = client.host_pointer(value)
        for step in range(3):
            old, [value] = value, program([value, one])
            assert old.is_deleted()
            assert client.host_pointer(value) == address
            assert np.array_equal(client.to_host(value), np.full(count, step + 2, np.float32))

    def test_reading_first_does_not_hold_the_memory(self, client):
        program = client.compile(addition("4096xf32", donate=True), 0)
        value = client.put(np.ones(4096, np.float32), 0)
        copy = client.to_host(value)
        address = client.host_pointer(value)
        [result] = program([value, client.put(copy, 0)])
        assert client.host_pointer(result) == address
        assert np.array_equal(copy, np.ones(4096, np.float32))

    @pytest.mark.parametrize("count", [16, 1 << 20])
    def test_host_memory_is_never_given_away(self, client, count):
        source = aligned(count)
        program = client.compile(addition(f"{count}xf32", donate=True), 0)
        [result] = program([client.put(source.numpy(), 0), client.put(source.numpy(), 0)])
        assert torch.equal(source, torch.ones(count))
        assert client.host_pointer(result) != source.data_ptr()

    def test_the_compiler_reports_it(self, client):
        program = client.compile(addition("1024xf32", donate=True), 0)
        assert jaxlib.memory_analysis(program.loaded)["alias_size"] == 4096

    def test_use_after_donation(self, client):
        program = client.compile(addition("4xf32", donate=True), 0)
        value, other = (client.put(np.ones(4, np.float32), 0) for _ in range(2))
        program([value, other])
        with pytest.raises(DonatedTensor, match="operand 0 was donated to an earlier program"):
            program([value, other])
        for use in (client.to_host, client.host_pointer, lambda v: client.copy_to_device(v, 0)):
            with pytest.raises(DonatedTensor, match="on tpu:0 was used after it had been donated"):
                use(value)
        with pytest.raises(jaxlib.JaxRuntimeError) as raised:
            program.execute_sharded([value, other])
        assert isinstance(client.translate(raised.value, 0), DonatedTensor)

    def test_one_buffer_as_donated_and_plain_operand(self, client):
        program = client.compile(addition("4xf32", donate=True), 0)
        value = client.put(np.ones(4, np.float32), 0)
        with pytest.raises(DonatedTensor, match="previously donated in the same call"):
            program([value, value])


class TestErrors:
    def test_operands_are_checked(self, client):
        program = client.compile(addition("2x3xf32"), 0)
        good = client.put(np.ones((2, 3), np.float32), 0)
        with pytest.raises(TypeError, match="the program takes 2 operands, got 1"):
            program([good])
        with pytest.raises(TypeError, match="operand 1 is a ndarray, not a device array"):
            program([good, np.ones((2, 3), np.float32)])

    @pytest.mark.parametrize(
        "name, value, says",
        [
            ("xla_no_such_option", 1, "No such compile option"),
            ("xla_cpu_enable_fast_math", "maybe", "'maybe' is not a valid bool value"),
        ],
    )
    def test_options_that_xla_refuses(self, client, name, value, says):
        with pytest.raises(ValueError, match=f"option '{name}': .*{says}"):
            client.compile(addition("4xf32"), 0, {name: value})

    def test_a_module_that_does_not_parse(self, client):
        with pytest.raises(RuntimeError, match=r"tpu:0: .*stablehlo.no_such_op"):
            client.compile(addition("4xf32").replace("stablehlo.add", "stablehlo.no_such_op"), 0)
        with pytest.raises(ValueError, match="a StableHLO module with a public @main"):
            client.compile("hello", 0)

    def test_out_of_memory(self, client):
        huge = 1 << 40
        text = module(
            "%a: tensor<f32>",
            f"tensor<{huge}xf32>",
            f"%0 = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> tensor<{huge}xf32>",
            f"return %0 : tensor<{huge}xf32>",
        )
        program = client.compile(text, 0)
        with pytest.raises(DeviceOutOfMemory) as raised:
            program([client.put(np.array(1, np.float32), 0)])
        assert isinstance(raised.value, torch.OutOfMemoryError)
        assert "tpu:0 is out of memory. Tried to allocate 4.00 TiB (4398046511104 bytes)." in str(
            raised.value
        )

    @pytest.mark.parametrize(
        "text, asked",
        [
            ("RESOURCE_EXHAUSTED: Out of memory allocating 1099511627776 bytes.", "1.00 TiB"),
            ("RESOURCE_EXHAUSTED: Attempting to allocate 4.00G. That was not", "4.00 GiB"),
            ("RESOURCE_EXHAUSTED: HLO temporaries (149.06G) exceeds available", "149.06 GiB"),
            ("RESOURCE_EXHAUSTED: Ran out of memory. Used 74.58G of 15.75G hbm", "74.58 GiB"),
        ],
    )
    def test_out_of_memory_names_asked_and_in_use(self, text, asked):
        error = pjrt_errors.translate(RuntimeError(text), "tpu:3", in_use=5 << 20)
        assert isinstance(error, DeviceOutOfMemory)
        assert f"Tried to allocate {asked}" in str(error)
        assert "5.00 MiB (5242880 bytes) are in use" in str(error) and text in str(error)

    def test_programs_that_have_no_torch_types(self):
        with pytest.raises(Unsupported, match="element type i4 has no torch dtype; use i1"):
            signature(addition("4xi4"))
        with pytest.raises(Unsupported, match="not a static tensor"):
            signature(addition("?xf32"))


class TestSignature:
    def test_attributes_locations_and_strings_do_not_count(self):
        text = (
            'module @jit_f { func.func public @main(%a: tensor<2x3xf32> {x = "tensor<1xi8>)("}, '
            '%b: tensor<complex<f64>> loc("b(")) -> (tensor<4xi1> {jax.result_info = "r[0](\\""}, '
            "tensor<bf16>) { return } }"
        )
        operands, results = signature(text)
        assert operands == [
            pjrt.Aval((2, 3), torch.float32),
            pjrt.Aval((), torch.complex128),
        ]
        assert results == [pjrt.Aval((4,), torch.bool), pjrt.Aval((), torch.bfloat16)]

    def test_nothing_returned(self):
        text = "module { func.func public @main(%a: tensor<2xf32>) { return } }"
        assert signature(text) == ([pjrt.Aval((2,), torch.float32)], [])


class TestOptions:
    def test_largest_tensor(self):
        assert largest_tensor(addition("f32")) == 1
        assert largest_tensor("tensor<2x3x4xf32> tensor<10xcomplex<f32>> tensor<0x9xi1>") == 24

    def test_small_programs_compile_cheaply_and_large_ones_run_fast(self):
        assert cpu_options(addition("128xf32"))["xla_backend_optimization_level"] == 0
        assert "xla_backend_optimization_level" not in cpu_options(addition("129xf32"))
        assert cpu_options(addition("4096xf32"))["xla_cpu_use_fusion_emitters"] is False
        assert "xla_cpu_use_fusion_emitters" not in cpu_options(addition("4097xf32"))

    def test_reductions_are_not_unrolled(self):
        text = addition("1000xf32").replace("stablehlo.add", "stablehlo.reduce")
        assert "xla_cpu_use_fusion_emitters" not in cpu_options(text)

    def test_extrema_are_kept_from_the_library_that_loses_nan(self):
        library = "xla_cpu_experimental_ynn_fusion_type"
        text = addition("1000xf32").replace("stablehlo.add", "stablehlo.reduce")
        assert library not in cpu_options(text)
        assert "REDUCE" not in str(cpu_options(text + "applies stablehlo.minimum")[library])

    def test_loops_are_always_optimised(self):
        text = addition("4xf32").replace("stablehlo.add", "stablehlo.while")
        assert "xla_backend_optimization_level" not in cpu_options(text)

    @pytest.mark.parametrize("kind", ["4xf32", "1000xf32", "10000xf32"])
    def test_no_level_loosens_the_arithmetic(self, kind):
        options = cpu_options(addition(kind))
        assert options["xla_cpu_enable_fast_min_max"] is False
        assert options["xla_allow_excess_precision"] is False
        assert not any("fast_math" in name for name in options)

    def test_an_option_that_this_xla_lacks_is_left_out(self, client, monkeypatch):
        options = {"xla_cpu_not_yet": True, "xla_cpu_enable_fast_math": "not a bool"}
        monkeypatch.setattr(pjrt, "cpu_options", lambda text: options)
        program = client.compile(addition("5xf32"), 0)
        value = client.put(np.ones(5, np.float32), 0)
        assert client.to_host(program([value, value])[0]).tolist() == [2] * 5
        assert client._refused_options >= set(options)
        client._refused_options -= set(options)


class TestChoice:
    @pytest.fixture(autouse=True)
    def clean(self, monkeypatch):
        for name in ("TPU_KERNELS_CPU", "TPU_LIBRARY_PATH", "TPU_KERNELS_CPU_DEVICES"):
            monkeypatch.delenv(name, raising=False)

    @pytest.mark.parametrize(
        "vendor, device, found",
        [("0x1ae0", "0x0063", True), ("0x1ae0", "0x0042", False), ("0x8086", "0x0063", False)],
    )
    def test_chips_are_found_on_the_pci_bus(self, tmp_path, vendor, device, found):
        slot = tmp_path / "0000:00:05.0"
        slot.mkdir()
        (tmp_path / "0000:00:06.0").mkdir()
        (slot / "vendor").write_text(vendor + "\n")
        (slot / "device").write_text(device + "\n")
        assert pjrt_choice.chip_present(tmp_path) is found
        assert not pjrt_choice.chip_present(tmp_path / "none")

    def test_the_cpu_without_a_chip(self, monkeypatch):
        monkeypatch.setattr(pjrt_choice, "chip_present", lambda: False)
        monkeypatch.setenv("TPU_KERNELS_CPU_DEVICES", "3")
        assert pjrt_choice.choose() == pjrt_choice.Choice(None, 3)

    def test_libtpu_with_a_chip_unless_the_cpu_is_asked_for(self, monkeypatch, tmp_path):
        monkeypatch.setattr(pjrt_choice, "chip_present", lambda: True)
        monkeypatch.setattr(pjrt_choice, "libtpu_path", lambda: tmp_path / "libtpu.so")
        assert pjrt_choice.choose().plugin_name == "tpu"
        monkeypatch.setenv("TPU_LIBRARY_PATH", "/opt/other.so")
        other = pjrt_choice.choose()
        assert other.library == Path("/opt/other.so") and other.plugin_name == "tpu_kernels"
        monkeypatch.setenv("TPU_KERNELS_CPU", "1")
        assert pjrt_choice.choose().library is None

    def test_a_chip_without_libtpu(self, monkeypatch):
        monkeypatch.setattr(pjrt_choice, "chip_present", lambda: True)
        monkeypatch.setattr(pjrt_choice.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(RuntimeError, match=r"not installed: pip install 'tpu_kernels\[tpu\]'"):
            pjrt_choice.choose()

    @pytest.mark.parametrize("text", ["0", "-1", "two", ""])
    def test_device_count_is_a_positive_integer(self, monkeypatch, text):
        monkeypatch.setenv("TPU_KERNELS_CPU_DEVICES", text)
        with pytest.raises(ValueError, match="TPU_KERNELS_CPU_DEVICES must be a positive integer"):
            pjrt_choice.choose()


def test_description(client):
    described = client.device_description(0)
    assert described.name == "XLA CPU" and described.memory > 1 << 28
    assert client.platform == "cpu" and client.synchronous and not client.is_plugin
    assert pjrt.device_count() == len(client.devices)


def test_the_known_good_set_is_the_pinned_one():
    pins = dict(re.findall(r"^(\w+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    assert {name: pins[name] for name in jaxlib.KNOWN_GOOD} == jaxlib.KNOWN_GOOD
