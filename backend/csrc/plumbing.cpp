// Typed kernels: allocation, views, storage changes and copies. Everything else is recorded.

#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/Tensor.h>
#include <ATen/TensorUtils.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <torch/library.h>

#include <array>
#include <memory>


#include "clock.h"
#include "device.h"
#include "trace.h"

namespace tpu {

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

struct TransferClock {
  int64_t begin = settings().timing ? now_ns() : 0;
  ~TransferClock() {
    counters().transfers++;
    if (begin != 0) counters().transfer_ns += now_ns() - begin;
  }
};

// ---- Allocation ----

struct OnDevice {
  explicit OnDevice(std::optional<c10::Device> device) : before(current_device()) {
    ensure_ready();
    if (device.has_value() && device->has_index()) set_current_device(device->index());
  }
  ~OnDevice() { set_current_device(before); }
  c10::DeviceIndex before;
};

void set_layout(const at::Tensor& tensor) {
  Cell* cell = cell_of(tensor.unsafeGetTensorImpl());
  cell->layout = describe_tensor(tensor.sizes(), tensor.strides(), tensor.scalar_type()).layout;
}

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(c10::kStrided) == c10::kStrided,
                              "tpu: only strided tensors are supported, got layout ", *layout,
                              "; convert with .to_dense() first");
  OnDevice guard(device);
  check_dtype(c10::dtype_or_default(dtype));
  auto tensor = at::Tensor(at::detail::empty_generic(size, allocator(), kKeys,
                                                     c10::dtype_or_default(dtype), format));
  set_layout(tensor);
  return tensor;
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                         std::optional<c10::Device> device, std::optional<bool>) {
  OnDevice guard(device);
  check_dtype(c10::dtype_or_default(dtype));
  auto tensor = at::Tensor(at::detail::empty_strided_generic(size, stride, allocator(), kKeys,
                                                             c10::dtype_or_default(dtype)));
  set_layout(tensor);
  return tensor;
}

// A tensor that is known to be zero and holds nothing; torch makes it real when it must.
at::Tensor efficient_zero_tensor(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                                 std::optional<c10::Layout>, std::optional<c10::Device> device,
                                 std::optional<bool>) {
  OnDevice guard(device);
  static auto* allocators = new std::array<std::unique_ptr<at::native::ZeroTensorAllocator>,
                                           kMaxDevices>();
  auto& zeros = allocators->at(current_device());
  if (!zeros) {
    zeros = std::make_unique<at::native::ZeroTensorAllocator>(
        c10::Device(c10::kPrivateUse1, current_device()));
  }
  auto keys = kKeys.add(c10::DispatchKey::ZeroTensor);
  return at::Tensor(at::detail::empty_generic(size, zeros.get(), keys,
                                              c10::dtype_or_default(dtype), std::nullopt));
}

// ---- Storages ----

void grow_for(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  size_t needed = tensor.numel() == 0
                      ? 0
                      : at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(),
                                                         tensor.element_size(),
                                                         tensor.storage_offset());
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (needed <= storage->nbytes()) return;
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  bool fresh = cell_of(storage)->value == nullptr && tensor.storage_offset() == 0;
  resize_storage(storage, needed);
  if (fresh) set_layout(tensor);
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size,
                          std::optional<c10::MemoryFormat> format) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != sizes) {
    impl->set_sizes_contiguous(sizes);
    grow_for(self);
  }
  if (format.has_value() && *format != c10::MemoryFormat::Preserve) {
    impl->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& set_strided(at::Tensor& self, at::Storage storage, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  TORCH_CHECK(storage.device() == self.device(), "tpu: set_ expects a storage on ", self.device(),
              ", got one on ", storage.device());
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (stride.data() == nullptr) {
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride);
  }
  grow_for(self);
  return self;
}

at::Tensor& set_source_storage_offset(at::Tensor& self, at::Storage storage, c10::SymInt offset,
                                      c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return set_strided(self, std::move(storage), offset.expect_int(), C10_AS_INTARRAYREF_SLOW(size),
                     C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor& set_source_storage(at::Tensor& self, at::Storage storage) {
  int64_t count = static_cast<int64_t>(storage.nbytes() / self.element_size());
  return set_strided(self, std::move(storage), 0, {count}, {});
}

at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source) {
  TORCH_CHECK(source.device() == self.device(), "tpu: set_ expects a tensor on ", self.device(),
              ", got one on ", source.device());
  return set_strided(self, source.storage(), source.storage_offset(), source.sizes(),
                     source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  at::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, allocate(0, self.device().index()), allocator(),
      true));
  return set_strided(self, std::move(storage), 0, {0}, {});
}

bool is_set_to(const at::Tensor& self, const at::Tensor& other) {
  return self.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() &&
         self.strides() == other.strides();
}

// ---- Views: torch's own geometry on our storages ----

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(self, size, stride, std::move(offset));
}
at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}
at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size,
                         c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size),
                                    C10_AS_INTARRAYREF_SLOW(stride));
}

// ---- Copies ----

// The bytes of a device tensor's storage on the host, for as long as this object lives.
class HostView {
 public:
  explicit HostView(const at::Tensor& tensor) {
    flush();
    Cell* cell = cell_of(tensor.unsafeGetTensorImpl());
    value_.reset(settled_value(cell));
    Py_INCREF(value_.get());
    const Origin* origin = cell->origin;
    Object op = checked(PyUnicode_FromString(origin == nullptr ? "" : origin->op.c_str()));
    Object where = checked(PyUnicode_FromString(origin == nullptr ? "" : origin->where.c_str()));
    view_ = call(callbacks().host_view, {value_.get(), op.get(), where.get()});
    if (PyLong_Check(view_.get())) {
      data_ = PyLong_AsVoidPtr(view_.get());
    } else {
      if (PyObject_GetBuffer(view_.get(), &buffer_, PyBUF_SIMPLE) != 0) throw_python_error();
      data_ = buffer_.buf;
    }
  }
  ~HostView() {
    if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
  }
  HostView(const HostView&) = delete;

  at::Tensor tensor(const at::Tensor& like) const {
    auto* data = static_cast<char*>(data_) + like.storage_offset() * like.element_size();
    return at::from_blob(data, like.sizes(), like.strides(),
                         at::TensorOptions().dtype(like.scalar_type()));
  }

 private:
  PythonCode python_;  // first in, last out: the members below are Python objects
  Object value_, view_;
  Py_buffer buffer_{};
  void* data_ = nullptr;
};

// Replace the whole value of `target`'s storage by host data; `target` covers its storage.
void put_whole(const at::Tensor& host, const at::Tensor& target) {
  auto meta = describe_tensor(target.sizes(), target.strides(), target.scalar_type());
  std::vector<int64_t> order(target.dim());
  for (int64_t d = 0; d < target.dim(); d++) order[d] = d;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return (target.size(a) == 1 ? 0 : target.stride(a)) > (target.size(b) == 1 ? 0 : target.stride(b));
  });
  at::Tensor memory = host.permute(order).contiguous();
  flush();
  Queue queue;
  Gil gil;
  Cell* cell = cell_of(target.unsafeGetTensorImpl());
  Object bytes = checked(PyMemoryView_FromMemory(
      static_cast<char*>(memory.data_ptr()), static_cast<Py_ssize_t>(memory.nbytes()), PyBUF_READ));
  Object device = checked(PyLong_FromLong(cell->device));
  Object array = call(callbacks().put, {bytes.get(), dtype_object(meta.layout->dtype).get(),
                                        int_tuple(meta.layout->sizes).get(), device.get()});
  set_value(cell, nullptr);
  cell->layout = meta.layout;
  cell->failure.reset();
  set_value(cell, array.release());
}

bool covers_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         tensor.nbytes() == tensor.storage().nbytes();
}

void device_to_device(const at::Tensor& source, const at::Tensor& target);

void host_to_device(const at::Tensor& source, const at::Tensor& target) {
  TransferClock clock;
  at::Tensor host = source.to(target.scalar_type()).expand(target.sizes()).resolve_conj().resolve_neg();
  if (target.is_conj() || target.is_neg()) {
    at::Tensor whole = at::empty(target.sizes(), target.options());
    put_whole(host, whole);
    return device_to_device(whole, target);
  }
  if (covers_storage(target)) return put_whole(host, target);
  at::Tensor whole = at::empty(target.sizes(), target.options());
  put_whole(host, whole);
  target.copy_(whole);
}

void device_to_host(const at::Tensor& source, const at::Tensor& target) {
  TransferClock clock;
  HostView view(source);
  at::Tensor host = view.tensor(source);
  if (source.is_conj()) host = host.conj();
  if (source.is_neg()) host = host._neg_view();
  target.copy_(host);
}

void device_to_device(const at::Tensor& source, const at::Tensor& target) {
  static Operation& copy =
      operation(c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", ""));
  if (is_set_to(target, source) && target.scalar_type() == source.scalar_type() &&
      target.is_conj() == source.is_conj() &&
      target.is_neg() == source.is_neg()) {
    return;  // onto itself
  }
  if (target.is_neg()) return device_to_device(at::neg(resolved(source)), target._neg_view());
  if (target.is_conj()) {
    return device_to_device(at::conj_physical(resolved(source)), target.conj());
  }
  at::Tensor local = resolved(source);
  if (source.device() != target.device()) {
    at::Tensor whole = local.contiguous();
    if (!covers_storage(whole)) whole = whole.clone(at::MemoryFormat::Contiguous);
    local = at::empty(source.sizes(), source.options().device(target.device()));
    flush();
    Queue queue;
    Gil gil;
    Cell* from = cell_of(whole.unsafeGetTensorImpl());
    Cell* to = cell_of(local.unsafeGetTensorImpl());
    Object device = checked(PyLong_FromLong(to->device));
    Object array = call(callbacks().copy_to_device, {settled_value(from), device.get()});
    to->layout = from->layout;
    set_value(to, array.release());
  }
  torch::jit::Stack stack;
  stack.emplace_back(target);
  stack.emplace_back(local);
  stack.emplace_back(false);
  record(copy, &stack);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool) {
  if (target.numel() == 0 || self.is_same(target)) return target;
  if (self._is_zerotensor()) {
    const_cast<at::Tensor&>(target).zero_();
    return target;
  }
  bool from = self.device().is_privateuseone(), to = target.device().is_privateuseone();
  if (from && to) {
    device_to_device(self, target);
  } else if (to) {
    host_to_device(self.device().is_cpu() ? self : self.cpu(), target);
  } else if (target.device().is_cpu()) {
    device_to_host(self, target);
  } else {
    target.copy_(self.cpu());
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  at::native::resize_output(target, self.sizes());
  return copy_from(self, target, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  TransferClock clock;
  HostView view(self);
  return view.tensor(self).item();
}

}  // namespace

// The tensor without conjugate, negative and zero-tensor bits.
at::Tensor resolved(const at::Tensor& tensor) {
  if (tensor._is_zerotensor()) return at::zeros(tensor.sizes(), tensor.options());
  at::Tensor result = tensor;
  if (result.is_neg()) result = at::neg(result._neg_view());
  if (result.is_conj()) result = at::conj_physical(result.conj());
  return result;
}

void resize_storage(c10::StorageImpl* storage, size_t nbytes) {
  flush();
  Queue queue;
  Gil gil;
  Cell* old = cell_of(storage);
  c10::DataPtr fresh = allocate(nbytes, old->device);
  Cell* cell = static_cast<Cell*>(fresh.get_context());
  cell->failure = old->failure;
  cell->origin = old->origin;
  if (old->value != nullptr && nbytes != 0) {
    Object size = checked(PyLong_FromSize_t(nbytes));
    Object device = checked(PyLong_FromLong(old->device));
    Object answer = call(callbacks().resize,
                         {old->value, dtype_object(old->layout->dtype).get(), size.get(), device.get()});
    PyObject* array = PyTuple_GetItem(answer.get(), 0);
    cell->layout = intern_layout(dtype_from(PyTuple_GetItem(answer.get(), 1)),
                                 ints_from(PyTuple_GetItem(answer.get(), 2)));
    Py_INCREF(array);
    set_value(cell, array);
  }
  storage->set_data_ptr(std::move(fresh));
  storage->set_nbytes(nbytes);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_efficientzerotensor", efficient_zero_tensor);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage_storage_offset", set_source_storage_offset);
  m.impl("set_.source_Storage", set_source_storage);
  m.impl("set_.source_Tensor", set_source_tensor);
  m.impl("set_", set_nothing);
  m.impl("is_set_to", is_set_to);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
}

// _copy_from does not declare what it writes: torch's fallbacks would hand it a resolved clone of
// the target. It reads the bits itself.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

}  // namespace tpu
