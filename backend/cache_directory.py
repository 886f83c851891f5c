"""The directory the executable cache lives in: where, whose, how full."""

from __future__ import annotations

import logging
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Iterator

log = logging.getLogger("tpu_kernels.cache")

ENTRY = re.compile(r"[0-9a-f]{32}-[0-9a-f]{32}-[0-9a-f]{32}\.pjrt")
_TEMPORARY = ".store-"
_ABANDONED_SECONDS = 3600
_DEFAULT_BYTES = 4 << 30

_lock = threading.Lock()
_warned: set[str] = set()
_unmeasured: dict[str, int] = {}  # bytes stored by this process since it last measured


def trusted() -> str | None:
    """The directory, if it is this user's alone, else None.

    Whoever can write in it can run code as this user.
    """
    directory = _chosen()
    if directory is None:
        return None
    try:
        status = os.stat(directory)
    except FileNotFoundError:
        return directory  # the first store makes it
    except OSError as error:
        reason = error.strerror
    else:
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid == os.geteuid() and not mode & 0o077:
            return directory
        if status.st_uid != os.geteuid():
            reason = f"it belongs to user {status.st_uid}, not {os.geteuid()}"
        else:
            reason = f"its mode {mode:o} lets others in; chmod 700 it"
    warn_once(f"compiled programs are not kept in {directory}: {reason}")
    return None


def _chosen() -> str | None:
    """What the environment asks for; None when the cache is off or has no place."""
    if os.environ.get("TPU_KERNELS_CACHE") == "0":
        return None
    if chosen := os.environ.get("TPU_KERNELS_CACHE_DIR"):
        return os.path.abspath(chosen)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # as its specification asks
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            warn_once("compiled programs are not kept: no home; set TPU_KERNELS_CACHE_DIR")
            return None
        base = f"{home}/.cache"
    return f"{base}/tpu_kernels/executables"


def limit() -> int:
    """How many bytes the directory may hold."""
    given = os.environ.get("TPU_KERNELS_CACHE_BYTES", "")
    try:
        return int(given or _DEFAULT_BYTES)
    except ValueError:
        warn_once(f"TPU_KERNELS_CACHE_BYTES={given!r} is no number; {_DEFAULT_BYTES} is used")
        return _DEFAULT_BYTES


def write(path: str, parts: tuple[bytes, ...]) -> None:
    """Make a file and the directories above it. A reader sees all of it or none.

    That holds whenever the writer dies, and for several writers of one path.
    """
    _make_private(os.path.dirname(path))
    descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=os.path.dirname(path))
    try:
        with open(descriptor, "wb") as file:
            file.writelines(parts)
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise


def _make_private(path: str) -> None:
    if not os.path.isdir(path):
        _make_private(os.path.dirname(path))
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass


def remove(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):  # another process was faster
            log.debug("%s cannot be removed: %s", path, error.strerror)
        return False
    return True


def files(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    """Entries and unfinished entries, and nothing else that a user may keep there."""
    for shard in _scan(directory):
        if len(shard.name) != 2 or not shard.is_dir(follow_symlinks=False):
            continue
        for item in _scan(shard.path):
            if ENTRY.fullmatch(item.name) or item.name.startswith(_TEMPORARY):
                try:
                    yield item.path, item.stat(follow_symlinks=False)
                except OSError:
                    pass  # another process removed it


def _scan(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as items:
            return list(items)
    except OSError:
        return []


def bound(directory: str, added: int) -> int:
    """Remove what was used longest ago where the directory is too full; returns how many.

    Measuring whenever a 64th of the limit was stored, down to 7/8 of it, keeps eight processes
    below the limit.
    """
    most = limit()
    with _lock:
        _unmeasured[directory] = _unmeasured.get(directory, most) + added
        if _unmeasured[directory] <= most // 64:
            return 0
        _unmeasured[directory] = 0
    found = sorted(files(directory), key=lambda item: item[1].st_mtime_ns)
    total = sum(status.st_size for _, status in found)
    removed = 0
    for path, status in found:
        unfinished = not path.endswith(".pjrt")
        if unfinished and time.time() - status.st_mtime < _ABANDONED_SECONDS:
            continue  # a process is writing it
        if unfinished or total > most * 7 // 8:
            total -= status.st_size
            removed += remove(path) and not unfinished
    return removed


def warn_once(message: str) -> None:
    """The same disk stays full for every program of a process."""
    with _lock:
        if message in _warned:
            return
        _warned.add(message)
    log.warning("%s", message)
