"""The version, in one place: pyproject.toml and `tpu_kernels.__version__` read it from here."""

__version__ = "0.1.0"
