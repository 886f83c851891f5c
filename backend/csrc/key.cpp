// Keys: what makes two calls the same program, and what is an operand at run time.

#include <ATen/Context.h>
#include <ATen/Tensor.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/utils/tensor_layouts.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <cstring>
#include <mutex>

#include "device.h"
#include "trace.h"

namespace tpu {

namespace {

enum Tag : uint64_t {
  kUndefined, kTensor, kHostScalar, kNone, kInt, kDouble, kBool, kComplex, kString, kDevice,
  kList, kGenerator, kDynamic, kStandard,
};

// In the place of an offset that is an operand; no offset has this value.
constexpr uint64_t kDynamicOffset = ~uint64_t(0);

thread_local uint64_t t_context = 0;

// A dynamic scalar that has the schema's default value is a constant of the program.
bool is_standard(const Argument& argument, const c10::IValue& value) {
  const auto& standard = argument.standard;
  if (standard.isInt() && value.isInt()) return standard.toInt() == value.toInt();
  return standard.isDouble() && value.isDouble() && standard.toDouble() == value.toDouble();
}

// Which offsets of a view may be operands: the digits of the offset over (stride, size) stay
// within max_start. Decided once per geometry by views.py.
struct OffsetRule {
  bool dynamic = false;
  struct Dim {
    int64_t stride, size, max_start;
  };
  std::vector<Dim> dims;

  bool allows(int64_t offset) const {
    if (!dynamic) return false;
    for (const Dim& dim : dims) {
      if (offset / dim.stride % dim.size > dim.max_start) return false;
    }
    return true;
  }
};

const OffsetRule& offset_rule(const Layout* layout, const at::Tensor& tensor) {
  static auto* rules =
      new std::unordered_map<std::vector<uint64_t>, std::unique_ptr<OffsetRule>, KeyHash>();
  thread_local std::vector<uint64_t> key;
  key.clear();
  key.push_back(reinterpret_cast<uint64_t>(layout));
  key.push_back(static_cast<uint64_t>(tensor.scalar_type()));
  for (int64_t size : tensor.sizes()) key.push_back(size);
  for (int64_t stride : tensor.strides()) key.push_back(stride);
  auto found = rules->find(key);
  if (found != rules->end()) return *found->second;

  auto rule = std::make_unique<OffsetRule>();
  Gil gil;
  Object answer =
      call(callbacks().offset_rule,
           {dtype_object(layout->dtype).get(), int_tuple(layout->sizes).get(),
            dtype_object(tensor.scalar_type()).get(), int_tuple(tensor.sizes()).get(),
            int_tuple(tensor.strides()).get()});
  if (answer.get() != Py_None) {
    rule->dynamic = true;
    Object rows = checked(PySequence_Fast(answer.get(), "offset_rule"));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(rows.get()); i++) {
      auto row = ints_from(PySequence_Fast_GET_ITEM(rows.get(), i));
      rule->dims.push_back({row.at(0), row.at(1), row.at(2)});
    }
  }
  return *rules->emplace(key, std::move(rule)).first->second;
}

bool is_whole(const Layout* layout, const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.scalar_type() == layout->dtype &&
         static_cast<size_t>(tensor.numel()) * tensor.element_size() == layout->nbytes;
}

bool offset_is_dynamic(Cell* cell, const at::Tensor& tensor) {
  if (!(cell->id & kExternal) || tensor.numel() == 0) return false;
  const Layout* layout = layout_of(cell);
  return !is_whole(layout, tensor) && offset_rule(layout, tensor).allows(tensor.storage_offset());
}

void check_same_device(Key& key, const at::Tensor& tensor) {
  c10::DeviceIndex index = tensor.device().index();
  if (key.device < 0) key.device = index;
  TORCH_CHECK(key.device == index,
              "Expected all tensors to be on the same device, but found at least two devices, tpu:",
              int(key.device), " and tpu:", int(index), "!");
}

[[noreturn]] void refuse_host_tensor(const Operation& op, size_t argument, const at::Tensor& tensor,
                                     c10::DeviceIndex device) {
  const auto& name = op.handle.schema().arguments()[argument].name();
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices,"
              " tpu:", int(device < 0 ? current_device() : device), " and ",
              tensor.device().str(), "! (argument '", name, "' of ", op.name,
              "); move it with .to('tpu')");
}

struct KeyBuilder {
  const Operation& op;
  Key& key;
  Trace& open;
  size_t argument = 0;

  void put(uint64_t word) { key.words.push_back(word); }
  void put_double(double value) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    put(bits);
  }

  void geometry(const at::Tensor& tensor) {
    auto sizes = tensor.sizes();
    auto strides = tensor.strides();
    size_t at = key.words.size(), rank = sizes.size();
    key.words.resize(at + 2 * rank);
    if (rank != 0) {
      memcpy(key.words.data() + at, sizes.data(), rank * 8);
      memcpy(key.words.data() + at + rank, strides.data(), rank * 8);
    }
  }

  void tensor(const at::Tensor& t) {
    if (!t.defined()) return put(kUndefined);
    if (!t.device().is_privateuseone()) return host_scalar(t);
    check_same_device(key, t);
    Cell* cell = cell_of(t.unsafeGetTensorImpl());
    if (cell->trace != open.id) {
      cell->trace = open.id;
      cell->external = static_cast<int32_t>(open.externals.size());
      cell->id = kExternal | static_cast<uint32_t>(cell->external);
      open.externals.push_back(t.storage());
    } else {
      key.repeats = true;
    }
    put(kTensor | uint64_t(t.scalar_type()) << 8 | uint64_t(t.dim()) << 16 |
        uint64_t(t.unsafeGetTensorImpl()->is_wrapped_number()) << 30 | uint64_t(cell->id) << 32);
    put(reinterpret_cast<uint64_t>(layout_of(cell)));
    geometry(t);
    if (offset_is_dynamic(cell, t)) {
      put(kDynamicOffset);
      open.ints.push_back(t.storage_offset());
    } else {
      put(static_cast<uint64_t>(t.storage_offset()));
    }
  }

  // A CPU scalar may take part in device arithmetic; its value is a run-time operand.
  void host_scalar(const at::Tensor& t) {
    if (t.dim() != 0 || !t.device().is_cpu()) refuse_host_tensor(op, argument, t, key.device);
    put(kHostScalar | uint64_t(t.scalar_type()) << 8 |
        uint64_t(t.unsafeGetTensorImpl()->is_wrapped_number()) << 16);
    if (t.is_complex()) {
      auto number = t.item().toComplexDouble();
      open.floats.push_back(number.real());
      open.floats.push_back(number.imag());
    } else if (t.is_floating_point()) {
      open.floats.push_back(t.scalar_type() == at::kDouble ? *t.const_data_ptr<double>()
                                                          : t.item().toDouble());
    } else {
      open.ints.push_back(t.scalar_type() == at::kLong ? *t.const_data_ptr<int64_t>()
                                                      : t.item().toLong());
    }
  }

  void value(const c10::IValue& v) {
    bool dynamic = op.arguments[argument].dynamic;
    if (v.isTensor()) return tensor(v.toTensor());
    if (v.isNone()) return put(kNone);
    if (dynamic && is_standard(op.arguments[argument], v)) return put(kStandard);
    if (v.isBool()) return put(kBool | uint64_t(v.toBool()) << 8);
    if (v.isInt()) {
      if (dynamic) {
        open.ints.push_back(v.toInt());
        return put(kDynamic | kInt << 8);
      }
      put(kInt);
      return put(static_cast<uint64_t>(v.toInt()));
    }
    if (v.isDouble()) {
      if (dynamic) {
        open.floats.push_back(v.toDouble());
        return put(kDynamic | kDouble << 8);
      }
      put(kDouble);
      return put_double(v.toDouble());
    }
    if (v.isComplexDouble()) {
      auto number = v.toComplexDouble();
      if (dynamic) {
        open.floats.push_back(number.real());
        open.floats.push_back(number.imag());
        return put(kDynamic | kComplex << 8);
      }
      put(kComplex);
      put_double(number.real());
      return put_double(number.imag());
    }
    if (v.isString()) return string(v.toStringRef());
    if (v.isDevice()) return device(v.toDevice());
    if (v.isGenerator()) return put(kGenerator);
    if (v.isList()) return list(v);
    TORCH_CHECK(false, "tpu: ", op.name, ": argument '",
                op.handle.schema().arguments()[argument].name(), "' of type ", v.tagKind(),
                " is not supported");
  }

  void string(const std::string& text) {
    put(kString | uint64_t(text.size()) << 8);
    size_t at = key.words.size();
    key.words.resize(at + (text.size() + 7) / 8, 0);
    memcpy(key.words.data() + at, text.data(), text.size());
  }

  void device(c10::Device device) {
    if (device.is_privateuseone()) {
      c10::DeviceIndex index = device.has_index() ? device.index() : current_device();
      check_device(index);
      if (key.device < 0) key.device = index;
    }
    put(kDevice | uint64_t(device.type()) << 8);
  }

  void list(const c10::IValue& v) {
    if (v.isIntList()) {
      auto items = v.toIntVector();
      put(kList | uint64_t(items.size()) << 8 | uint64_t(1) << 40);
      for (int64_t item : items) put(static_cast<uint64_t>(item));
      return;
    }
    if (v.isTensorList()) {
      const auto items = v.toTensorVector();
      put(kList | uint64_t(items.size()) << 8);
      for (const at::Tensor& item : items) tensor(item);
      return;
    }
    auto list = v.toList();
    put(kList | uint64_t(list.size()) << 8);
    for (size_t i = 0; i < list.size(); i++) value(list.get(i));
  }
};

// Python data for lowering. The entries' shapes are documented in recorder.py.
struct Describer {
  const Operation& op;
  Trace& open;
  size_t argument = 0;
  size_t next_int, next_float;

  Object tuple(std::initializer_list<PyObject*> items) {  // steals the references
    Object result = checked(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
    Py_ssize_t i = 0;
    for (PyObject* item : items) PyTuple_SET_ITEM(result.get(), i++, item);
    return result;
  }
  static PyObject* text(const char* chars) { return checked(PyUnicode_FromString(chars)).release(); }
  static PyObject* number(int64_t value) { return checked(PyLong_FromLongLong(value)).release(); }
  static Object none() {
    Py_INCREF(Py_None);
    return Object(Py_None);
  }

  Object scalar(c10::ScalarType dtype, bool weak) {
    bool floats = c10::isFloatingType(dtype) || c10::isComplexType(dtype);
    size_t slot = floats ? next_float++ : next_int++;
    if (c10::isComplexType(dtype)) next_float++;
    return tuple({text("scalar"), dtype_object(dtype).release(), number(static_cast<int64_t>(slot)),
                  PyBool_FromLong(weak)});
  }

  Object tensor(const at::Tensor& t) {
    if (!t.defined()) return none();
    bool wrapped = t.unsafeGetTensorImpl()->is_wrapped_number();
    if (!t.device().is_privateuseone()) return scalar(t.scalar_type(), wrapped);
    Cell* cell = cell_of(t.unsafeGetTensorImpl());
    bool dynamic = offset_is_dynamic(cell, t);
    int64_t offset = dynamic ? static_cast<int64_t>(next_int++) : t.storage_offset();
    const Layout* layout = layout_of(cell);
    return tuple({text("tensor"), number(cell->id), dtype_object(t.scalar_type()).release(),
                  int_tuple(t.sizes()).release(), int_tuple(t.strides()).release(),
                  number(offset), PyBool_FromLong(dynamic),
                  dtype_object(layout->dtype).release(), int_tuple(layout->sizes).release()});
  }

  Object value(const c10::IValue& v) {
    bool dynamic =
        op.arguments[argument].dynamic && !is_standard(op.arguments[argument], v);
    if (v.isTensor()) return tensor(v.toTensor());
    if (v.isNone()) return none();
    if (v.isBool()) return Object(PyBool_FromLong(v.toBool()));
    if (v.isInt()) return dynamic ? scalar(c10::kLong, true) : integer(v.toInt());
    if (v.isDouble()) {
      return dynamic ? scalar(c10::kDouble, true) : checked(PyFloat_FromDouble(v.toDouble()));
    }
    if (v.isComplexDouble()) {
      auto number = v.toComplexDouble();
      return dynamic ? scalar(c10::kComplexDouble, true)
                     : checked(PyComplex_FromDoubles(number.real(), number.imag()));
    }
    if (v.isString()) return checked(PyUnicode_FromString(v.toStringRef().c_str()));
    if (v.isList()) return list(v);
    return none();  // devices and generators are in the key, not in the lowering
  }

  Object integer(int64_t value) {
    switch (op.arguments[argument].kind) {
      case Argument::kDtype: return dtype_object(static_cast<c10::ScalarType>(value));
      case Argument::kLayout: {
        auto* object = reinterpret_cast<PyObject*>(
            torch::getTHPLayout(static_cast<c10::Layout>(value)));
        Py_INCREF(object);
        return Object(object);
      }
      case Argument::kMemoryFormat: {
        auto* object = torch::utils::getTHPMemoryFormat(static_cast<c10::MemoryFormat>(value));
        Py_INCREF(object);
        return Object(object);
      }
      default: return checked(PyLong_FromLongLong(value));
    }
  }

  Object list(const c10::IValue& v) {
    auto items = v.toList();
    Object result = checked(PyList_New(static_cast<Py_ssize_t>(items.size())));
    for (size_t i = 0; i < items.size(); i++) {
      PyList_SET_ITEM(result.get(), static_cast<Py_ssize_t>(i), value(items.get(i)).release());
    }
    return result;
  }
};

}  // namespace

size_t KeyHash::operator()(const std::vector<uint64_t>& key) const {
  uint64_t hash = 0x9E3779B97F4A7C15ull;  // the multiplier is splitmix64's
  for (uint64_t word : key) {
    hash ^= word;
    hash *= 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
  }
  return hash;
}

void set_thread_context(uint64_t word) { t_context = word; }

uint64_t thread_context() {
  uint64_t word = t_context << 1 | uint64_t(settings().excess_precision);
  if (!settings().precision_matters) return word << 8;
  return word << 8 | uint64_t(at::globalContext().float32MatmulPrecision());
}

Mark mark() {
  auto& open = trace();
  return {open.externals.size(), open.ints.size(), open.floats.size()};
}

void roll_back(const Mark& mark) {
  auto& open = trace();
  for (size_t i = mark.externals; i < open.externals.size(); i++) {
    Cell* cell = cell_of(open.externals[i].unsafeGetStorageImpl());
    cell->trace = 0;
    cell->external = -1;
  }
  open.externals.resize(mark.externals);
  open.ints.resize(mark.ints);
  open.floats.resize(mark.floats);
}

void build_key(const Operation& op, const c10::IValue* arguments, Key& key) {
  key.words.clear();
  key.device = -1;
  key.repeats = false;
  KeyBuilder builder{op, key, trace()};
  builder.put(reinterpret_cast<uint64_t>(&op));
  builder.put(thread_context());
  for (size_t i = 0; i < op.arguments.size(); i++) {
    builder.argument = i;
    builder.value(arguments[i]);
  }
  if (key.device < 0) key.device = current_device();
}

Object describe_arguments(const Operation& op, const c10::IValue* arguments, const Mark& at) {
  Describer describer{op, trace(), 0, at.ints, at.floats};
  Object result = checked(PyTuple_New(static_cast<Py_ssize_t>(op.arguments.size())));
  for (size_t i = 0; i < op.arguments.size(); i++) {
    describer.argument = i;
    PyTuple_SET_ITEM(result.get(), static_cast<Py_ssize_t>(i),
                     describer.value(arguments[i]).release());
  }
  return result;
}

Object python_arguments(const Operation& op, const c10::IValue* arguments) {
  auto wrap = [](const at::Tensor& tensor) { return checked(THPVariable_Wrap(tensor)); };
  Object result = checked(PyTuple_New(static_cast<Py_ssize_t>(op.arguments.size())));
  Operation plain(op.handle);  // scalars by value, none of them dynamic
  for (size_t i = 0; i < op.arguments.size(); i++) {
    const auto& value = arguments[i];
    Object item;
    if (value.isTensor() && value.toTensor().defined()) {
      item = wrap(value.toTensor());
    } else if (value.isTensorList() || (value.isList() && value.toList().size() != 0 &&
                                        (value.toList().get(0).isTensor() ||
                                         value.toList().get(0).isNone()))) {
      auto items = value.toList();
      item = checked(PyList_New(static_cast<Py_ssize_t>(items.size())));
      for (size_t k = 0; k < items.size(); k++) {
        c10::IValue element = items.get(k);
        PyList_SET_ITEM(item.get(), static_cast<Py_ssize_t>(k),
                        element.isTensor() && element.toTensor().defined()
                            ? wrap(element.toTensor()).release()
                            : Describer::none().release());
      }
    } else {
      Describer literal{plain, trace(), i, 0, 0};
      item = literal.value(value);
    }
    PyTuple_SET_ITEM(result.get(), static_cast<Py_ssize_t>(i), item.release());
  }
  return result;
}

bool is_device_tensor(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() &&
         value.toTensor().device().is_privateuseone();
}

}  // namespace tpu
