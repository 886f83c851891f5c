"""The "tpu" device: ATen lowered to StableHLO, run through PjRt.

How to add a lowering: add a line to the table of its family in `backend/lowering/`
(`lower(aten.neg, pointwise(hlo.negate))`), then run `pytest tests/conformance -k neg`.
In-place and `out=` variants, promotion and views come from the schema; write none of them.

How to support a new jaxlib: run `pytest tests/test_pjrt.py` with it; all that may differ between
releases is feature-detected in `pjrt_jaxlib.py`, and nowhere else.
"""

if __name__ != "tpu_kernels.backend":
    raise ImportError(
        f"this folder was imported as {__name__!r}; its import name is 'tpu_kernels.backend'"
    )
