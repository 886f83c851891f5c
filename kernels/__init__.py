"""TPU kernels as PyTorch ops: one kernel, one file.

How to add a kernel: write `kernels/<name>.py` and edit nothing else. In this order: a docstring
(formula with shapes, dtypes, one source, what is not supported), `reference` in plain ATen,
`supports(...)` returning None or the reason, `Config`, the kernel, the public function, its
gradient or a written refusal, the op, and `CASES` for the tests. The reference is also what runs
when `supports` refuses.
"""

if __name__ != "tpu_kernels.kernels":
    raise ImportError(
        f"this folder was imported as {__name__!r}; its import name is 'tpu_kernels.kernels'. "
        "To import another project of that name, run from another directory."
    )
