"""The compiled programs kept on disk: where they are, how many, and a way to remove them.

On by default. `TPU_KERNELS_CACHE=0` turns it off, `TPU_KERNELS_CACHE_DIR` moves it (default:
`tpu_kernels/executables` under `$XDG_CACHE_HOME` or `~/.cache`), `TPU_KERNELS_CACHE_BYTES` bounds
it (4 GiB); what was used longest ago goes first. The log "tpu_kernels.cache" says at DEBUG why a
program was not found, naming the field that differs.
"""

from tpu_kernels.backend.cache import Info, clear, info

__all__ = ["Info", "clear", "info"]
