"""Run Python text in a process forked from one that has imported the runtime and started nothing.

Importing torch costs two seconds and a fork milliseconds; what can crash is still alone.
"""

import functools
import json
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from tests.fresh_process import ROOT, settings

_SERVER = """
import json, os, signal, sys
import numpy as np
from tpu_kernels.backend import pjrt

for line in sys.stdin:
    request = json.loads(line)
    if (child := os.fork()) == 0:
        for descriptor, file in enumerate(request["files"]):
            os.dup2(os.open(file, os.O_RDWR), descriptor)
        os.environ.update(request["env"])
        signal.alarm(request["timeout"])
        exec(request["text"], {"__name__": "__main__", "np": np, "pjrt": pjrt})
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Ends when this process does: its standard input closes."""
    return subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        cwd=ROOT,
        env=settings(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def python(text: str, timeout: int = 120, **env: str) -> subprocess.CompletedProcess[str]:
    """The finished process; `np` and `pjrt` are imported. A timeout is exit code -14."""
    server = _server()
    assert server.stdin and server.stdout
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        for stream in streams:
            stream.touch()
        request = {
            "text": textwrap.dedent(text),
            "timeout": timeout,
            "files": [str(stream) for stream in streams],
            "env": {"TPU_KERNELS_CPU": "1"} | env,
        }
        print(json.dumps(request), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        said, complained = (stream.read_text() for stream in streams[1:])
    return subprocess.CompletedProcess(text, code, said, complained)


def output(text: str, timeout: int = 120, **env: str) -> str:
    """What a process that must succeed printed."""
    done = python(text, timeout, **env)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
