"""Operators that fail on device "tpu", and why. Strict: one that passes must leave this file."""

from __future__ import annotations

# {reason: operators in float32, or "operator:dtype"}
_BY_REASON: dict[str, str] = {
    "matrix factorizations and solvers, and what is built on them: not lowered yet": """
        cholesky cholesky_inverse cholesky_solve geqrf linalg.cholesky linalg.cholesky_ex
        linalg.cond linalg.det linalg.eig linalg.eigh linalg.eigvals linalg.eigvalsh
        linalg.householder_product linalg.inv linalg.inv_ex linalg.ldl_factor
        linalg.ldl_factor_ex linalg.ldl_solve linalg.lstsq linalg.lstsq.grad_oriented
        linalg.lu linalg.lu_factor linalg.lu_factor_ex linalg.lu_solve linalg.matrix_rank
        linalg.matrix_rank.hermitian linalg.pinv linalg.pinv.hermitian linalg.pinv.singular
        linalg.qr linalg.slogdet linalg.solve linalg.solve_ex linalg.solve_triangular
        linalg.svd linalg.svdvals linalg.tensorinv linalg.tensorsolve logdet lu lu_solve
        lu_unpack matrix_exp norm.nuc ormqr pca_lowrank pinverse qr svd svd_lowrank
        triangular_solve
    """,
    "Fourier transforms: not lowered yet": """
        fft.fft fft.fft2 fft.fftn fft.hfft fft.hfft2 fft.hfftn fft.ifft fft.ifft2 fft.ifftn
        fft.ihfft fft.ihfft2 fft.ihfftn fft.irfft fft.irfft2 fft.irfftn fft.rfft fft.rfft2
        fft.rfftn istft:complex64 stft
    """,
    "special functions that torch does not decompose: not lowered yet": """
        i0 igamma igammac special.airy_ai special.bessel_j0 special.bessel_j1
        special.bessel_y0 special.bessel_y1 special.chebyshev_polynomial_t
        special.chebyshev_polynomial_u special.chebyshev_polynomial_v
        special.chebyshev_polynomial_w special.erfcx special.hermite_polynomial_h
        special.hermite_polynomial_he special.i0e special.i1 special.i1e
        special.laguerre_polynomial_l special.legendre_polynomial_p special.log_ndtr
        special.modified_bessel_i0 special.modified_bessel_i1 special.modified_bessel_k0
        special.modified_bessel_k1 special.ndtri special.scaled_modified_bessel_k0
        special.scaled_modified_bessel_k1 special.shifted_chebyshev_polynomial_t
        special.shifted_chebyshev_polynomial_u special.shifted_chebyshev_polynomial_v
        special.shifted_chebyshev_polynomial_w special.spherical_bessel_j0
    """,
    "sparse layouts: not a dense strided tensor": """
        sparse.mm.reduce sparse.sampled_addmm to_sparse
    """,
    "complex32: XLA has no such type": """
        chalf
    """,
    "an algorithm of its own: not lowered yet": """
        _segment_reduce.lengths _segment_reduce.offsets hash_tensor histogram histogramdd
        nn.functional.ctc_loss nn.functional.embedding_bag
        nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d
        torch._scaled_mm:float8_e4m3fn torch._scaled_mm_v2:float8_e4m3fn
    """,
}


def _expand() -> dict[tuple[str, str], str]:
    known: dict[tuple[str, str], str] = {}
    for reason, names in _BY_REASON.items():
        for entry in names.split():
            op, _, dtype = entry.partition(":")
            key = (op, dtype or "float32")
            if key in known:
                raise ValueError(f"{key} is listed twice")
            known[key] = reason
    return known


KNOWN_FAILURES: dict[tuple[str, str], str] = _expand()
