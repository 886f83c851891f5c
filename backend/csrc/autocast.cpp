// torch.autocast("tpu"): torch's own lists of what runs in low precision, what in float32 and what
// in its widest operand. Everything else passes through.

#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace tpu::autocast {

// As torch's macros spell them.
using at::IntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::Tensor;

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define WIDEN(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define WIDEN_RESULT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
  AT_FORALL_FP32(WIDEN)
  AT_FORALL_FP32_SET_OPT_DTYPE(WIDEN_RESULT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(WIDEST)
#undef LOWER
#undef WIDEN
#undef WIDEN_RESULT
#undef WIDEST
}

}  // namespace tpu::autocast
