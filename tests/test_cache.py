"""The executable cache on disk: whatever happens to a file, a load gives its bytes or none."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tpu_kernels import cache as public
from tpu_kernels.backend import cache, cache_directory

MODULE = """func.func public @main(%x: tensor<4x8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.slice %x [0:1, 0:8] : (tensor<4x8xf32>) -> tensor<1x8xf32>
  %1 = stablehlo.reshape %0 : (tensor<1x8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}"""
VERSIONS = {"jaxlib": "0.10.2", "platform": "cpu"}
PAYLOAD = bytes(range(256)) * 8
FOREIGN = 4242


def key_of(text: str = MODULE, options: dict[str, object] | None = None) -> cache.Key:
    key = cache.key(text, options or {}, VERSIONS)
    assert key is not None
    return key


KEY = key_of()


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TPU_KERNELS_CACHE", "TPU_KERNELS_CACHE_BYTES"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "executables"
    monkeypatch.setenv("TPU_KERNELS_CACHE_DIR", str(path))
    monkeypatch.setattr(cache_directory, "_warned", set())
    return path


@pytest.fixture
def entry(directory: Path) -> Path:
    cache.store(KEY, PAYLOAD)
    return directory / KEY.name


def python(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script, with this file's names in it, in a new process."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
         f"from test_cache import *\n{script}"],
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_a_second_process_finds_what_the_first_stored(entry: Path) -> None:
    assert cache.load(KEY) == PAYLOAD
    found = python("assert cache.load(KEY) == PAYLOAD", PYTHONHASHSEED="7")
    assert found.returncode == 0, found.stderr
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


# What may lie where an entry was, and the reason that is logged.
def flip(at: int) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[at] ^= 0x10
        path.write_bytes(content)

    return damage


def cut(size: int) -> Callable[[Path], object]:
    return lambda path: os.truncate(path, size)


def replace(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        path.rename(path.with_suffix(".old"))
        make(path)

    return damage


def other_program(path: Path) -> None:
    other = key_of(MODULE.replace("f32", "f64"))
    cache.store(other, PAYLOAD)
    (path.parent.parent / other.name).replace(path)


DAMAGE = {
    "format": (flip(3), "written in format"),
    "key length": (flip(8), "bytes where"),
    "payload length": (flip(15), "bytes where"),
    "checksum": (flip(30), "checksum"),
    "key": (flip(60), "checksum"),
    "payload": (flip(-100), "checksum"),
    "empty": (cut(0), "cut to 0 bytes"),
    "in the header": (cut(20), "cut to 20 bytes"),
    "in the payload": (cut(1000), "bytes where"),
    "appended": (lambda p: p.write_bytes(p.read_bytes() + b"more"), "bytes where"),
    "another program": (other_program, "another program's"),
    "link": (replace(lambda p: p.symlink_to(p.with_suffix(".old"))), "symbolic links"),
    "pipe": (replace(os.mkfifo), "not a regular file"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_a_logged_miss(
    entry: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    spoil, reason = DAMAGE[damage]
    spoil(entry)
    assert cache.load(KEY) is None
    assert reason in caplog.text and str(entry) in caplog.text
    assert not os.path.lexists(entry)
    cache.store(KEY, PAYLOAD)
    assert cache.load(KEY) == PAYLOAD


def test_every_single_bit_flip_is_noticed(entry: Path) -> None:
    good = entry.read_bytes()
    for at in range(0, len(good), 97):
        flip(at)(entry)
        assert cache.load(KEY) is None, at
        entry.write_bytes(good)
    assert cache.load(KEY) == PAYLOAD


def test_an_entry_the_client_refuses_is_removed(
    entry: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.reject(KEY, "the client said no")
    assert "the client said no" in caplog.text
    assert cache.load(KEY) is None


def make_foreign(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(path, FOREIGN, FOREIGN)
    else:
        real = os.stat(path).st_ino

        def owner(status: os.stat_result) -> os.stat_result:
            changed = list(status)
            changed[stat.ST_UID] = FOREIGN if status.st_ino == real else status.st_uid
            return os.stat_result(changed)

        stat_of, fstat_of = os.stat, os.fstat
        monkeypatch.setattr(os, "stat", lambda p, **kw: owner(stat_of(p, **kw)))
        monkeypatch.setattr(os, "fstat", lambda fd: owner(fstat_of(fd)))


def test_an_entry_of_another_user_is_not_run(
    entry: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_foreign(entry, monkeypatch)
    assert cache.load(KEY) is None
    assert f"belongs to user {FOREIGN}" in caplog.text


def test_a_directory_of_another_user_is_not_used(
    entry: Path,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_foreign(directory, monkeypatch)
    assert cache.load(KEY) is None
    cache.store(KEY, b"other")
    assert caplog.text.count(f"belongs to user {FOREIGN}") == 1  # said once
    assert public.info().directory is None and public.clear() == 0
    assert entry.exists()


@pytest.mark.parametrize("mode", (0o770, 0o707, 0o755))
def test_a_directory_open_to_others_is_not_used(
    entry: Path, directory: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    directory.chmod(mode)
    assert cache.load(KEY) is None
    assert f"mode {mode:o} lets others in; chmod 700" in caplog.text
    directory.chmod(0o700)
    assert cache.load(KEY) == PAYLOAD


KILLED = {
    "before the rename": "os.replace = lambda *a: os.kill(os.getpid(), 9)",
    # The kernel kills the process in the middle of its write.
    "while writing": "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))",
}


@pytest.mark.parametrize("when", KILLED)
def test_a_writer_that_is_killed_leaves_no_entry(directory: Path, when: str) -> None:
    died = python(f"{KILLED[when]}\ncache.store(KEY, PAYLOAD)")
    assert died.returncode < 0
    (left,) = directory.glob("*/*")
    assert left.name.startswith(".store-")
    assert cache.load(KEY) is None
    cache.store(KEY, PAYLOAD)
    assert cache.load(KEY) == PAYLOAD
    os.utime(left, (0, 0))  # a writer that is still at work is left alone for an hour
    cache_directory.bound(str(directory), 1 << 40)
    assert not left.exists() and cache.load(KEY) == PAYLOAD


def test_a_full_disk_is_a_logged_miss(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def on_a_full_disk(prefix: str, dir: str) -> tuple[int, str]:
        path = f"{dir}/{prefix}full"
        Path(path).touch()
        return os.open("/dev/full", os.O_WRONLY), path

    monkeypatch.setattr(tempfile, "mkstemp", on_a_full_disk)
    cache.store(KEY, PAYLOAD)
    cache.store(KEY, PAYLOAD)
    assert caplog.text.count(os.strerror(errno.ENOSPC)) == 1
    assert cache.load(KEY) is None
    assert not list(directory.glob("*/*"))


def test_a_file_size_limit_is_a_logged_miss() -> None:
    script = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
cache.store(KEY, PAYLOAD)
assert cache.load(KEY) is None"""
    ended = python(script)
    assert ended.returncode == 0 and os.strerror(errno.EFBIG) in ended.stderr


@pytest.mark.parametrize("place", ("/proc/executables", "/dev/null/executables"))
def test_a_place_that_cannot_be_written_is_a_logged_miss(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    monkeypatch.setenv("TPU_KERNELS_CACHE_DIR", place)
    cache.store(KEY, PAYLOAD)
    assert cache.load(KEY) is None
    assert f"not kept in {place}: " in caplog.text


def test_a_read_only_directory_still_serves(
    entry: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    os.utime(entry, (0, 0))
    for function in ("mkdir", "replace", "unlink", "utime"):
        monkeypatch.setattr(os, function, refuse)
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    assert cache.load(KEY) == PAYLOAD
    cache.store(key_of(MODULE + " "), PAYLOAD)
    assert os.strerror(errno.EROFS) in caplog.text


def test_an_entry_that_cannot_be_opened_now_is_kept(
    entry: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert cache.load(KEY) is None
    assert "Too many open files" in caplog.text
    assert cache.load(KEY) == PAYLOAD


EIGHT = """
import random
def payload(n): return bytes([n]) * (1500 + 10 * n)
keys = [key_of(MODULE + " " * n) for n in range(40)]
children = []
for child in range(8):
    children.append(os.fork())
    if children[-1] == 0:
        rng, served = random.Random(child), 0
        for _ in range(300):
            n = rng.randrange(40)
            found = cache.load(keys[n])
            if found is None:
                cache.store(keys[n], payload(n))
            elif found != payload(n):
                os._exit(1)
            else:
                served += 1
            if rng.random() < 0.02:
                path = f"{os.environ['TPU_KERNELS_CACHE_DIR']}/{keys[n].name}"
                try: os.truncate(path, rng.randrange(2000))
                except OSError: pass
        os._exit(0 if served > 30 else 2)
print([os.waitpid(pid, 0)[1] for pid in children], public.info().bytes)
"""


def test_eight_processes_at_once() -> None:
    """They store, load, damage and evict the same entries, in half the room these need."""
    ended = python(EIGHT, TPU_KERNELS_CACHE_BYTES="50000")
    assert ended.stdout.startswith("[0, 0, 0, 0, 0, 0, 0, 0]"), ended.stdout + ended.stderr[-2000:]
    assert int(ended.stdout.split()[-1]) <= 50000
    assert "Traceback" not in ended.stderr


def test_the_least_recently_used_entries_go_first(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPU_KERNELS_CACHE_BYTES", "60000")
    keys = [key_of(MODULE + " " * n) for n in range(60)]
    for age, key in enumerate(keys[:10]):
        cache.store(key, PAYLOAD)
        os.utime(directory / key.name, (1000 + age, 1000 + age))
    assert cache.load(keys[0]) == PAYLOAD  # now it is the newest
    evicted = public.info().evicted
    for key in keys[10:]:
        cache.store(key, PAYLOAD)
        assert public.info().bytes <= 60000
        assert cache.load(key) == PAYLOAD
        if public.info().evicted == evicted + 1:
            assert cache.load(keys[0]) == PAYLOAD and cache.load(keys[1]) is None
    assert public.info().evicted - evicted == 60 - public.info().entries


def test_a_payload_too_large_for_the_bound_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_KERNELS_CACHE_BYTES", "16000")
    cache.store(KEY, PAYLOAD)
    assert public.info().entries == 0


def test_info_and_clear(entry: Path, directory: Path) -> None:
    own = directory / "notes"
    own.mkdir()
    (own / "mine.pjrt").write_text("the user's")
    cache.store(key_of(MODULE + " "), PAYLOAD)
    state = public.info()
    assert state.directory == str(directory) and state.entries == 2
    assert 2 * len(PAYLOAD) < state.bytes < 2 * len(PAYLOAD) + 3000 and state.limit == 4 << 30
    before = public.info()
    cache.load(KEY), cache.load(key_of(MODULE + "  "))
    after = public.info()
    assert (after.hits - before.hits, after.misses - before.misses) == (1, 1)
    assert public.clear() == 2
    assert public.info().entries == 0 and cache.load(KEY) is None
    assert (own / "mine.pjrt").exists()
    assert public.clear() == 0


def test_off(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_KERNELS_CACHE", "0")
    assert cache.load(KEY) is None
    assert public.info().directory is None
    assert cache.explain(KEY) == "the cache is not in use"


def test_default_places_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPU_KERNELS_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    expected = {"": "home/.cache", "relative": "home/.cache", str(tmp_path / "xdg"): "xdg"}
    for xdg, place in expected.items():
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
        cache.store(KEY, PAYLOAD)
        made = tmp_path / place / "tpu_kernels" / "executables"
        assert public.info().directory == str(made)
        assert cache.load(KEY) == PAYLOAD
        assert {stat.S_IMODE(p.stat().st_mode) for p in (made, made.parent)} == {0o700}
        shutil.rmtree(made)
        cache.store(KEY, PAYLOAD)  # a process survives that its directory is removed
        assert cache.load(KEY) == PAYLOAD


def test_no_home_is_a_logged_miss(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("TPU_KERNELS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert cache.load(KEY) is None
    assert "set TPU_KERNELS_CACHE_DIR" in caplog.text


def test_a_bound_that_is_no_number_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TPU_KERNELS_CACHE_BYTES", "4GB")
    cache.store(KEY, PAYLOAD)
    assert cache.load(KEY) == PAYLOAD
    assert "TPU_KERNELS_CACHE_BYTES='4GB' is no number" in caplog.text


# text or options of another program, and which parts of the key it changes
CHANGES: dict[str, tuple[str, dict[str, object], set[str]]] = {
    "shape": (MODULE.replace("4x8", "5x8"), {}, {"dimensions"}),
    "rank": (MODULE.replace("<8x", "<2x4x"), {}, {"dimensions"}),
    "slice": (MODULE.replace("[0:1,", "[1:2,"), {}, {"dimensions"}),
    "dtype": (MODULE.replace("f32", "f16"), {}, {"computation"}),
    "op": (MODULE.replace("reshape", "bitcast"), {}, {"computation"}),
    "option": (MODULE, {"xla_tpu_scoped_vmem_limit_kib": 65536}, {"options"}),
    "type of an option": (MODULE, {"flag": True}, {"options"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_key_has_three_parts(change: str) -> None:
    text, options, changed = CHANGES[change]
    other = key_of(text, options)
    parts = ("computation", "dimensions", "options")
    assert {p for p in parts if getattr(other, p) != getattr(KEY, p)} == changed
    assert key_of(text, options) == other
    assert other == key_of(text, dict(reversed(options.items())))


def test_options_of_equal_text_and_different_type_differ() -> None:
    values: list[object] = [1, True, "1", 1.0, "True"]
    assert len({key_of(options={"flag": value}).options for value in values}) == len(values)
    with pytest.raises(TypeError):
        key_of(options={"flag": object()})


@pytest.mark.parametrize("name", ("XLA_FLAGS", "LIBTPU_INIT_ARGS"))
def test_flags_of_the_process_are_in_the_key(name: str) -> None:
    script = f"print(KEY.computation, KEY.options, KEY.fields[{name!r}])"
    plain, flagged = (python(script, **{name: v}).stdout.split() for v in ("", "--some_flag=1"))
    assert plain[0] == flagged[0] and plain[1] != flagged[1]
    assert flagged[2] == "--some_flag=1"


def test_a_miss_says_what_differs(entry: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.store(key_of(options={"a": 1, "b": 2}), PAYLOAD)
    caplog.set_level(logging.DEBUG, "tpu_kernels.cache")
    expected = {
        "computation: not compiled here before": key_of(MODULE.replace("f32", "f16")),
        "dimensions: compiled here for other sizes only (2 entries)": key_of(
            MODULE.replace("4x8", "5x8")
        ),
        "options: option a 1 -> 3": key_of(options={"a": 3, "b": 2}),
        "options: option c None -> 1": key_of(options={"c": 1}),
    }
    for text, key in expected.items():
        caplog.clear()
        assert cache.load(key) is None
        assert f"miss: {text}" in caplog.text
    newer = cache.key(MODULE, {}, {**VERSIONS, "jaxlib": "0.11.2"})
    assert newer and cache.explain(newer) == "options: jaxlib '0.10.2' -> '0.11.2'"
    assert cache.explain(KEY) == "nothing differs: an entry exists"
    entry.write_bytes(b"damaged")
    assert "cannot be read" in cache.explain(newer)


@pytest.mark.parametrize(
    "call",
    (
        'custom_call @xla_ffi_python_cpu_callback(%x) {backend_config = "1"}',
        "custom_call @xla_python_cpu_callback(%x)",
        "custom_call @xla_ffi_partitioned_python_gpu_callback(%x)",
        "custom_call @xla_buffer_python_cpu_callback(%x)",
        '"stablehlo.send"(%x) {is_host_transfer = true}',
    ),
)
def test_code_of_this_process_is_never_stored(call: str) -> None:
    key = cache.key(MODULE.replace("reshape %0", call), {}, VERSIONS)
    assert key is None
    cache.store(key, PAYLOAD)
    assert cache.load(key) is None and public.info().entries == 0
