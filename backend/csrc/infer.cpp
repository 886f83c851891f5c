// The first sight of a call: what it returns, by torch's Meta kernel, and its Python record.
#include "infer.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/Tensor.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>

#include "trace.h"

namespace tpu {

void check_dtype(c10::ScalarType dtype) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      c10::isIntegralType(dtype, true) || dtype == c10::kHalf || dtype == c10::kBFloat16 ||
          dtype == c10::kFloat || dtype == c10::kDouble || dtype == c10::kComplexFloat ||
          dtype == c10::kComplexDouble || c10::isFloat8Type(dtype),
      "tpu: dtype ", c10::toString(dtype), " is not supported by the device; convert first, for "
      "example with .float() or .to(torch.complex64)");
}

TensorMeta describe_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  TensorMeta meta{sizes.vec(), strides.vec(), c10::scalarTypeToTypeMeta(dtype), 0, nullptr};
  meta.nbytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  // A dense tensor's value has its dimensions in memory order; see memory_order in interpreter.py.
  std::vector<size_t> order;
  for (size_t d = 0; d < sizes.size(); d++) {
    if (sizes[d] != 1) order.push_back(d);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  int64_t expected = 1, numel = 1;
  bool dense = true;
  for (size_t i = order.size(); i-- > 0;) {
    dense = dense && strides[order[i]] == expected;
    expected *= sizes[order[i]];
  }
  for (int64_t size : sizes) numel *= size;
  std::vector<int64_t> shape = sizes.vec();
  if (dense && numel != 0) {
    size_t next = 0;
    for (size_t d = 0; d < shape.size(); d++) {
      if (sizes[d] != 1) shape[d] = sizes[order[next++]];
    }
  } else if (numel != 0) {
    shape = {static_cast<int64_t>(meta.nbytes / c10::elementSize(dtype))};
  }
  meta.layout = intern_layout(dtype, shape);
  return meta;
}

namespace {

at::Tensor meta_tensor(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_privateuseone()) return tensor;
  auto meta = at::Tensor(at::detail::empty_strided_meta(
      tensor.sizes(), tensor.strides(), tensor.scalar_type()));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return meta;
}

// An argument with its tensors mapped and device arguments replaced.
template <typename F>
c10::IValue moved_value(const c10::IValue& value, c10::DeviceType device, F&& move) {
  if (value.isTensor()) return move(value.toTensor());
  if (value.isDevice() && value.toDevice().is_privateuseone()) return c10::Device(device);
  if (value.isGenerator()) return c10::IValue();
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& item : value.toTensorVector()) list.push_back(move(item));
    return list;
  }
  if (value.isList() &&
      value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& item : value.toListRef()) {
      list.push_back(item.isTensor() ? std::make_optional(move(item.toTensor())) : std::nullopt);
    }
    return list;
  }
  return value;
}

}  // namespace

// The Meta kernels' messages are not always the CPU kernels'. Ask the CPU with zeros.
void raise_as_on_cpu(const Operation& op, const c10::IValue* arguments) {
  constexpr int64_t kMostElements = int64_t(1) << 24;
  bool small = true;
  auto host = [&](const at::Tensor& t) {
    if (!t.defined() || !t.device().is_privateuseone()) return t;
    small = small && t.numel() <= kMostElements;
    auto zeros = at::empty_strided(t.sizes(), t.strides(), t.options().device(c10::kCPU));
    if (small) zeros.zero_();
    return zeros;
  };
  torch::jit::Stack stack;
  for (size_t i = 0; i < op.arguments.size() && small; i++) {
    stack.push_back(moved_value(arguments[i], c10::kCPU, host));
  }
  if (!small) return;
  op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
}

// Returns and resizes of a call, by torch's Meta kernel. Raises torch's own shape errors.
void infer(const Operation& op, const c10::IValue* arguments, Node& node) {
  torch::jit::Stack stack;
  for (size_t i = 0; i < op.arguments.size(); i++) stack.push_back(moved_value(arguments[i], c10::kMeta, meta_tensor));
  const torch::jit::Stack inputs = stack;
  try {
    op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  } catch (...) {
    raise_as_on_cpu(op, arguments);
    throw;
  }

  for (size_t i = 0; i < op.arguments.size(); i++) {
    if (!op.arguments[i].out || !inputs[i].isTensor() || !arguments[i].isTensor()) continue;
    auto wanted = inputs[i].toTensor().sizes();
    if (wanted != arguments[i].toTensor().sizes()) node.resize.emplace_back(i, wanted.vec());
  }
  if (!node.resize.empty()) return;

  const auto& returns = op.handle.schema().returns();
  auto fresh = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return Result{Result::kUndefined};
    check_dtype(tensor.scalar_type());
    node.results++;
    return Result{Result::kFresh, 0,
                  describe_tensor(tensor.sizes(), tensor.strides(), tensor.scalar_type())};
  };
  for (size_t r = 0; r < returns.size(); r++) {
    Return result;
    if (const auto* alias = returns[r].alias_info(); alias != nullptr && alias->isWrite()) {
      const auto& schema = op.handle.schema().arguments();
      for (uint32_t i = 0; i < schema.size(); i++) {
        const auto* from = schema[i].alias_info();
        if (from != nullptr && from->isWrite() && from->beforeSets() == alias->beforeSets()) {
          result.results.push_back({Result::kAlias, i});
        }
      }
    } else if (stack[r].isTensorList()) {
      result.is_list = true;
      for (const at::Tensor& item : stack[r].toTensorVector()) result.results.push_back(fresh(item));
    } else if (stack[r].isTensor()) {
      result.results.push_back(fresh(stack[r].toTensor()));
    } else {
      result.results.push_back({Result::kConstant, 0, {}, stack[r]});
    }
    node.returns.push_back(std::move(result));
  }
  for_each_written(op, arguments, [&](const at::Tensor&) { node.results++; });
}
void check_written_once(const Operation& op, const c10::IValue* arguments) {
  for_each_written(op, arguments, [](const at::Tensor& t) { at::assert_no_internal_overlap(t); });
}

void check_partial_overlap(const Operation& op, const c10::IValue* arguments) {
  for (size_t w = 0; w < op.arguments.size(); w++) {
    if (!op.arguments[w].write || !is_device_tensor(arguments[w])) continue;
    const at::Tensor& written = arguments[w].toTensor();
    for (size_t i = 0; i < op.arguments.size(); i++) {
      if (i == w || !is_device_tensor(arguments[i])) continue;
      const at::Tensor& read = arguments[i].toTensor();
      if (read.storage().unsafeGetStorageImpl() == written.storage().unsafeGetStorageImpl()) {
        at::assert_no_partial_overlap(written, read);
      }
    }
  }
}

namespace {

const Origin* intern_origin(const std::string& op, const std::string& where) {
  static std::mutex mutex;
  static auto* table = new std::unordered_map<std::string, const Origin*>();
  std::lock_guard<std::mutex> lock(mutex);
  auto& origin = (*table)[op + '\n' + where];
  if (origin == nullptr) origin = new Origin{op, where};
  return origin;
}

Object outputs_tuple(const Node& node) {
  Object list = checked(PyList_New(0));
  for (const Return& result : node.returns) {
    for (const Result& item : result.results) {
      if (item.kind != Result::kFresh) continue;
      Object entry = checked(PyTuple_New(4));
      auto dtype = c10::typeMetaToScalarType(item.meta.dtype);
      PyTuple_SET_ITEM(entry.get(), 0, int_tuple(item.meta.sizes).release());
      PyTuple_SET_ITEM(entry.get(), 1, int_tuple(item.meta.strides).release());
      PyTuple_SET_ITEM(entry.get(), 2, dtype_object(dtype).release());
      PyTuple_SET_ITEM(entry.get(), 3, int_tuple(item.meta.layout->sizes).release());
      if (PyList_Append(list.get(), entry.get()) != 0) throw_python_error();
    }
  }
  return list;
}

}  // namespace

void describe(const Operation& op, Object arguments, Node& node) {
  Object answer = call(callbacks().describe,
                       {checked(PyUnicode_FromString(op.name.c_str())).get(), arguments.get(),
                        outputs_tuple(node).get()});
  PyObject* where = PyTuple_GetItem(answer.get(), 1);
  PyObject* draws = PyTuple_GetItem(answer.get(), 2);
  if (where == nullptr || draws == nullptr) throw_python_error();
  node.record = PyTuple_GetItem(answer.get(), 0);
  Py_INCREF(node.record);
  node.origin = intern_origin(op.name, PyUnicode_AsUTF8(where));
  node.draws = PyLong_AsUnsignedLongLong(draws);
}

}  // namespace tpu
