"""Judges the operators named on stdin, one line of JSON each: a process that may die.

python -m tests.conformance.worker DEVICE SAMPLES [DTYPE] < names
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import asdict


def main(device: str, samples: int, dtype: str = "") -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    warnings.simplefilter("ignore")

    import torch

    from .judge import judge
    from .samples import database

    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    database()
    print("ready", file=answers, flush=True)
    for name in sys.stdin:
        verdict = judge(name.strip(), device, samples, dtype)
        print(json.dumps(asdict(verdict)), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
