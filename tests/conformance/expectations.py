"""What is expected of each operator, as data. Names are those of torch's database.

An operator in no list passes under FP32, strides included, in every sample.
"""

from __future__ import annotations

from pathlib import Path

from .known_failures import KNOWN_FAILURES

CORE = (Path(__file__).parent / "core_opinfos.txt").read_text().split()

# Sums of many products, and what is built of them: FP32_ACCUM. The rest is FP32.
ACCUMULATES_PREFIX = ("fft.", "linalg.", "nn.functional.conv", "masked.norm", "norm")
ACCUMULATES = frozenset(
    """
    _batch_norm_with_update _native_batch_norm_legit addbmm addmm addmm.decomposed addmv baddbmm
    bmm bmm.triton_optimized cdist cholesky cholesky_inverse cholesky_solve corrcoef cov dist dot
    einsum geqrf inner istft kron logdet lu lu_solve lu_unpack __rmatmul__ matmul matrix_exp mm mv
    native_batch_norm native_group_norm native_layer_norm nn.functional.batch_norm
    nn.functional.bilinear nn.functional.cosine_embedding_loss nn.functional.cosine_similarity
    nn.functional.group_norm nn.functional.instance_norm nn.functional.layer_norm
    nn.functional.linear nn.functional.linear_cross_entropy
    nn.functional.linear_cross_entropy.chunked nn.functional.linear_cross_entropy.chunked_none
    nn.functional.local_response_norm nn.functional.multi_head_attention_forward
    nn.functional.normalize nn.functional.pairwise_distance nn.functional.pdist
    nn.functional.rms_norm nn.functional.scaled_dot_product_attention masked.normalize ormqr
    pca_lowrank pinverse qr sparse.mm.reduce sparse.sampled_addmm stft svd svd_lowrank tensordot
    torch._scaled_mm torch._scaled_mm_v2 triangular_solve vdot
    """.split()
)

# Memory nobody wrote: shapes, dtypes and strides only.
UNINITIALISED = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided".split()
)

# Samples that draw numbers are judged by shape, dtype, strides and by giving the same numbers for
# the same seed; test_distributions.py judges the numbers. Their other samples (dropout in
# evaluation, p=0) are judged by value.
RANDOM = frozenset(
    """
    bernoulli cauchy exponential geometric log_normal multinomial nn.functional.alpha_dropout
    nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d
    nn.functional.feature_alpha_dropout.with_train nn.functional.fractional_max_pool2d
    nn.functional.fractional_max_pool3d nn.functional.multi_head_attention_forward
    nn.functional.rrelu nn.functional.scaled_dot_product_attention normal normal.in_place
    normal.number_mean rand_like randint randint_like randn randn_like uniform
    """.split()
)

# Where float32 on the CPU is itself far from the true value: judged against float64, with four
# times the CPU's own error allowed.
NOISY: dict[str, str] = {
    "logcumsumexp": "its gradient is a difference of logarithms",
    "_upsample_bilinear2d_aa": "weights are differences of float32 positions",
    "native_layer_norm": "over one element the gradient is 0, and rounding is all there is",
    "nn.functional.interpolate.bicubic": "weights are differences of float32 positions",
    "nn.functional.layer_norm": "over one element the gradient is 0, and rounding is all there is",
}

# Tensors after the first that torch wants on the CPU whatever the device.
HOST_OPERANDS: dict[str, str] = {
    "tensor_split": "sizes are read from the split points",
}

# Results whose strides torch's Meta kernel gives other than its CPU kernel does.
STRIDES: dict[str, str] = {}

# Not about a device: not run at all.
EXCLUDED: dict[str, str] = {
    name: "torch has it on CUDA only"
    for name in """
        jiterator_unary jiterator_binary jiterator_4inputs_with_extra_args
        jiterator_binary_return_by_ref jiterator_2inputs_2outputs
        nn.functional.batch_norm.without_cudnn torch.ops.aten._efficient_attention_forward
        torch.ops.aten._flash_attention_forward
    """.split()
}


# Of the dtypes that are no single precision; integers are exact under every policy.
POLICY_OF_DTYPE = {
    "float64": "FP64",
    "complex128": "FP64",
    "bfloat16": "BF16_OUT",
    "float16": "FP16_OUT",
}


def policy_of(name: str, dtype: str) -> str:
    if dtype in POLICY_OF_DTYPE:
        return POLICY_OF_DTYPE[dtype]
    accumulates = name in ACCUMULATES or name.startswith(ACCUMULATES_PREFIX)
    return "FP32_ACCUM" if accumulates else "FP32"


def surprise(op: str, dtype: str, failure: str | None) -> str | None:
    """What is wrong with an outcome, given what is known; None when it is as expected."""
    reason = KNOWN_FAILURES.get((op, dtype))
    if failure and reason is None:
        return failure
    if reason and failure is None:
        return f"passes, but known_failures.py has it: {reason}"
    return None
