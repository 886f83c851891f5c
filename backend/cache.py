"""Compiled programs on disk, so that a second process compiles nothing.

XLA runs a loaded executable unchecked: neither version, processor nor damage is noticed. So all
that decides the machine code is in the key, all bytes are under a checksum, and the directory is
private. Whatever goes wrong is a miss with a logged reason.

An entry `ab/<computation>-<dimensions>-<options>.pjrt` (`ab`: the first digits of the computation)
is a header, the key in JSON, and the payload.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import logging
import os
import platform
import re
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tpu_kernels.backend import cache_directory

log = logging.getLogger("tpu_kernels.cache")

_MAGIC = b"TPUKEXE1"  # the last digit is the version of this format
_HEADER = struct.Struct("<8sIQ32s")  # magic, bytes of key, bytes of payload, sha256 of both
# A use is written down at most this often, so that a hit costs no write.
_TOUCH_SECONDS = 3600

# One place of a module that holds sizes: a shape, an integer array, a bracketed list of integers.
_SIZES = re.compile(r"(tensor<(?:[\d?]+x)*|array<i64: [-\d, ]+|\[[-\d,: \[\]]*\])")
# Code that lives in the process that compiled it: another one would call a dangling address.
_HOST_CODE = ("_callback", "is_host_transfer = true")
_CPUINFO = {"vendor_id", "cpu family", "model", "flags"}  # x86
_CPUINFO |= {"CPU implementer", "CPU part", "Features"}  # Arm


@dataclass(frozen=True)
class Key:
    """What decides an executable, as three sha256 digests; `fields` spells the last one out."""

    computation: str
    dimensions: str
    options: str
    fields: Mapping[str, object] = field(compare=False, repr=False)

    def encode(self) -> bytes:
        return json.dumps(vars(self), sort_keys=True).encode()

    @property
    def name(self) -> str:
        parts = (self.computation, self.dimensions, self.options)
        return f"{self.computation[:2]}/{'-'.join(part[:32] for part in parts)}.pjrt"


@dataclass(frozen=True)
class Info:
    """The cache on disk, and what this process did with it."""

    directory: str | None  # None: off, or not to be trusted
    entries: int
    bytes: int
    limit: int
    hits: int
    misses: int
    stores: int
    rejected: int
    evicted: int


class _Rejected(Exception):
    """An entry that must not be run; the text is the reason."""


# Opening a link, another user's private file, or a device without a reader fails with these.
_NO_FILE_OF_OURS = (errno.ELOOP, errno.EACCES, errno.ENXIO)
_COUNTED = ("hits", "misses", "stores", "rejected", "evicted")
_lock = threading.Lock()
_counts: Counter[str] = Counter()


def key(text: str, options: Mapping[str, object], versions: Mapping[str, str]) -> Key | None:
    """The key of a StableHLO module compiled with `options`; None where it may not be stored.

    Splitting the text loses nothing, so equal keys mean equal modules.
    """
    if any(mark in text for mark in _HOST_CODE):
        return None
    pieces = _SIZES.split(text)
    fields = {**environment(), **versions, **{f"option {k}": v for k, v in options.items()}}
    return Key(
        computation=_digest("\0".join(pieces[::2])),
        dimensions=_digest("\0".join(pieces[1::2])),
        options=_digest(json.dumps(fields, sort_keys=True)),
        fields=fields,
    )


@functools.cache
def environment() -> Mapping[str, object]:
    """What this process adds to every key, as it is when first asked: XLA reads its flags once."""
    affinity = getattr(os, "sched_getaffinity", lambda pid: range(os.cpu_count() or 1))
    return {
        "format": _MAGIC.decode(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "LIBTPU_INIT_ARGS": os.environ.get("LIBTPU_INIT_ARGS", ""),
        "processor": _processor(),
        "threads": len(affinity(0)),  # XLA splits loops into as many parts
    }


def _processor() -> str:
    """Stands for the instruction set, and for the model, which LLVM schedules for."""
    found = [platform.machine()]
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in _CPUINFO:
                    found.append(value.strip())
                if not line.strip():  # the end of the first processor
                    break
    except OSError:
        pass
    return _digest("\n".join(found))[:32]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def load(key: Key | None) -> bytes | None:
    """The executable stored under `key`, or None. Never raises."""
    directory = cache_directory.trusted()
    if key is None or directory is None:
        return None
    path = f"{directory}/{key.name}"
    try:
        payload = _read(path, key.encode())
    except FileNotFoundError:
        payload = None
    except (OSError, _Rejected) as error:
        payload = None
        if isinstance(error, _Rejected) or error.errno in _NO_FILE_OF_OURS:
            _reject(path, str(error))
        else:  # such as too many open files: the entry may be good
            cache_directory.warn_once(f"{directory} cannot be read: {error.strerror}")
    _count("misses" if payload is None else "hits")
    if payload is None and log.isEnabledFor(logging.DEBUG):
        log.debug("miss: %s", explain(key))
    return payload


def _read(path: str, expected: bytes) -> bytes:
    """The payload of an entry, checked against its header and the key it must have."""
    # Neither a link nor a pipe in its place may be followed or waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _Rejected("not a regular file")
        if status.st_uid != os.geteuid():
            raise _Rejected(f"it belongs to user {status.st_uid}, not {os.geteuid()}")
        content = file.read()
    if len(content) < _HEADER.size:
        raise _Rejected(f"cut to {len(content)} bytes")
    magic, key_bytes, payload_bytes, checksum = _HEADER.unpack_from(content)
    body = memoryview(content)[_HEADER.size :]
    if magic != _MAGIC:
        raise _Rejected(f"written in format {magic!r}, read in {_MAGIC!r}")
    if len(body) != key_bytes + payload_bytes:
        raise _Rejected(f"{len(body)} bytes where {key_bytes + payload_bytes} were written")
    if hashlib.sha256(body).digest() != checksum:
        raise _Rejected("its checksum does not match")
    if body[:key_bytes] != expected:
        raise _Rejected("it is another program's")
    if time.time() - status.st_mtime > _TOUCH_SECONDS:
        with contextlib.suppress(OSError):  # read-only, or just evicted
            os.utime(path)
    return bytes(body[key_bytes:])


def reject(key: Key | None, reason: str) -> None:
    """Remove an entry that the client refused to load."""
    directory = cache_directory.trusted()
    if key is not None and directory is not None:
        _reject(f"{directory}/{key.name}", reason)


def _reject(path: str, reason: str) -> None:
    _count("rejected")
    log.warning("%s is removed and its program compiled again: %s", path, reason)
    cache_directory.remove(path)


def store(key: Key | None, payload: bytes) -> None:
    """Keep an executable for later processes. Never raises; a failure is logged."""
    directory = cache_directory.trusted()
    if key is None or directory is None:
        return
    encoded = key.encode()
    checksum = hashlib.sha256(encoded)
    checksum.update(payload)
    header = _HEADER.pack(_MAGIC, len(encoded), len(payload), checksum.digest())
    size = len(header) + len(encoded) + len(payload)
    if size > cache_directory.limit() // 8:
        log.debug("not stored: %d bytes are more than an eighth of the limit", size)
        return
    try:
        cache_directory.write(f"{directory}/{key.name}", (header, encoded, payload))
    except OSError as error:
        cache_directory.warn_once(
            f"compiled programs are not kept in {directory}: {error.strerror}"
        )
        return
    _count("stores")
    _count("evicted", cache_directory.bound(directory, size))


def explain(key: Key) -> str:
    """Which part of `key` differs from everything stored, in words."""
    directory = cache_directory.trusted()
    if directory is None:
        return "the cache is not in use"
    shard, name = os.path.split(f"{directory}/{key.name}")
    computation, dimensions, _ = name.split("-")
    try:
        names = filter(cache_directory.ENTRY.fullmatch, os.listdir(shard))
        stored = [n for n in names if n.startswith(computation)]
    except OSError:
        stored = []
    if not stored:
        return "computation: not compiled here before"
    if name in stored:
        return "nothing differs: an entry exists"
    same_sizes = [n for n in stored if n.split("-")[1] == dimensions]
    if not same_sizes:
        return f"dimensions: compiled here for other sizes only ({len(stored)} entries)"
    differences = [_differences(f"{shard}/{n}", key) for n in same_sizes[:16]]
    return "options: " + min(differences, key=len)


def _differences(path: str, key: Key) -> str:
    """The fields of `key` that differ from those of an entry, with both values."""
    try:
        with open(path, "rb") as file:
            key_bytes = _HEADER.unpack(file.read(_HEADER.size))[1]
            old = json.loads(file.read(key_bytes))["fields"]
    except (OSError, ValueError, KeyError, struct.error):
        return "those of an entry that cannot be read"
    names = sorted({*old, *key.fields})
    return ", ".join(
        f"{name} {old.get(name)!r} -> {key.fields.get(name)!r}"
        for name in names
        if old.get(name) != key.fields.get(name)
    )


def info() -> Info:
    """Where the cache is, how full, and what this process got from it."""
    directory = cache_directory.trusted()
    found = list(cache_directory.files(directory)) if directory else []
    with _lock:
        counts = {name: _counts[name] for name in _COUNTED}
    return Info(
        directory=directory,
        entries=sum(path.endswith(".pjrt") for path, _ in found),
        bytes=sum(status.st_size for _, status in found),
        limit=cache_directory.limit(),
        **counts,
    )


def clear() -> int:
    """Remove every stored executable; returns how many. Running programs are not affected."""
    directory = cache_directory.trusted()
    found = list(cache_directory.files(directory)) if directory else []
    return sum(cache_directory.remove(path) and path.endswith(".pjrt") for path, _ in found)


def _count(name: str, by: int = 1) -> None:
    with _lock:
        _counts[name] += by
