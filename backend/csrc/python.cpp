#include "python.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>

#include "cell.h"

namespace tpu {

void throw_python_error() {
  python_error error;
  error.persist();
  throw std::move(error);
}

PyObject* take_error() {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return value;
}

Callbacks& callbacks() {
  static auto* table = new Callbacks();
  return *table;
}

void set_callbacks(PyObject* module) {
  auto& c = callbacks();
  const std::pair<const char*, PyObject**> names[] = {
      {"server", &c.server},
      {"describe", &c.describe},       {"compile", &c.compile},
      {"offset_rule", &c.offset_rule}, {"put", &c.put},
      {"staging", &c.staging},
      {"zeros", &c.zeros},             {"host_view", &c.host_view},
      {"resize", &c.resize},           {"copy_to_device", &c.copy_to_device},
      {"check_bounds", &c.check_bounds}, {"consume", &c.consume},
      {"marker", &c.marker},           {"translate", &c.translate},
      {"is_ready", &c.is_ready},       {"wait", &c.wait},
  };
  for (auto [name, slot] : names) {
    Py_XSETREF(*slot, checked(PyObject_GetAttrString(module, name)).release());
  }
}

Object call(PyObject* function, std::initializer_list<PyObject*> arguments) {
  PyObject* stack[8] = {nullptr};
  size_t count = 0;
  for (PyObject* argument : arguments) stack[++count] = argument;
  return checked(PyObject_Vectorcall(function, stack + 1, count | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                     nullptr));
}

Object dtype_object(c10::ScalarType dtype) {
  auto* object = reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype));
  Py_INCREF(object);
  return Object(object);
}

c10::ScalarType dtype_from(PyObject* object) {
  TORCH_CHECK(THPDtype_Check(object), "tpu: expected a torch.dtype");
  return reinterpret_cast<THPDtype*>(object)->scalar_type;
}

Object int_tuple(c10::IntArrayRef values) {
  Object tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  for (size_t i = 0; i < values.size(); i++) {
    PyTuple_SET_ITEM(tuple.get(), i, checked(PyLong_FromLongLong(values[i])).release());
  }
  return tuple;
}

std::vector<int64_t> ints_from(PyObject* sequence) {
  Object fast = checked(PySequence_Fast(sequence, "tpu: expected a sequence of int"));
  std::vector<int64_t> values;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); i++) {
    values.push_back(PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast.get(), i)));
  }
  if (PyErr_Occurred()) throw_python_error();
  return values;
}

bool is_ready(PyObject* array) {
  Object answer = call(callbacks().is_ready, {array});
  return PyObject_IsTrue(answer.get()) == 1;
}

void wait_for(PyObject* array) { call(callbacks().wait, {array}); }

void ensure_ready() {
  if (process().ready) return;
  PythonCode python;
  Object module = checked(PyImport_ImportModule("tpu_kernels.backend.device"));
  checked(PyObject_CallMethod(module.get(), "_lazy_init", nullptr));
}

}  // namespace tpu
