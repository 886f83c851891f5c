#include "python_kernel.h"

#include <ATen/Tensor.h>
#include <torch/csrc/autograd/python_variable.h>

#include "trace.h"

namespace tpu {

bool is_composed(Operation& op, const c10::IValue* arguments) {
  thread_local std::vector<uint64_t> kinds;
  kinds.clear();
  auto add = [](const at::Tensor& t) {
    kinds.push_back(!t.defined() ? 1
                                 : uint64_t(t.scalar_type()) << 8 | uint64_t(t.dim()) << 16 |
                                       uint64_t(t.device().type()) << 32);
  };
  for (size_t i = 0; i < op.arguments.size(); i++) {
    if (arguments[i].isTensor()) add(arguments[i].toTensor());
    if (arguments[i].isNone()) kinds.push_back(2);
    if (arguments[i].isBool()) kinds.push_back(4 | uint64_t(arguments[i].toBool()));
    if (arguments[i].isInt()) kinds.push_back(static_cast<uint64_t>(arguments[i].toInt()) << 3);
    if (!arguments[i].isList() || arguments[i].isIntList()) continue;
    for (const c10::IValue& item : arguments[i].toListRef()) {
      add(item.isTensor() ? item.toTensor() : at::Tensor());
    }
  }
  PythonCode python;  // guards the table too
  auto found = op.composed_for.find(kinds);
  if (found != op.composed_for.end()) return found->second;
  auto key = kinds;
  Object given = python_arguments(op, arguments);
  Object answer = checked(PyObject_CallObject(op.composed_when, given.get()));
  bool composed = PyObject_IsTrue(answer.get()) == 1;
  op.composed_for[key] = composed;
  return composed;
}

namespace {

c10::IValue result_value(PyObject* result) {
  if (THPVariable_Check(result)) return THPVariable_Unpack(result);
  if (result == Py_None) return at::Tensor();
  if (PyBool_Check(result)) return result == Py_True;
  if (PyLong_Check(result)) return static_cast<int64_t>(PyLong_AsLongLong(result));
  if (PyFloat_Check(result)) return PyFloat_AsDouble(result);
  Object items = checked(PySequence_Fast(result, "tpu: a Python kernel gave no tensor"));
  c10::List<at::Tensor> list;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); i++) {
    list.push_back(THPVariable_Unpack(PySequence_Fast_GET_ITEM(items.get(), i)));
  }
  return list;
}

}  // namespace

void run_python(Operation& op, PyObject* function, torch::jit::Stack* stack) {
  const auto* arguments = stack->data() + stack->size() - op.arguments.size();
  PythonCode python;
  Object given = python_arguments(op, arguments);
  Object result = checked(PyObject_CallObject(function, given.get()));
  torch::jit::drop(*stack, op.arguments.size());
  size_t count = op.handle.schema().returns().size();
  if (count == 1) return stack->push_back(result_value(result.get()));
  if (count == 0) return;
  Object items = checked(PySequence_Fast(result.get(), "tpu: a Python kernel returns a tuple"));
  for (size_t i = 0; i < count; i++) {
    stack->push_back(
        result_value(PySequence_Fast_GET_ITEM(items.get(), static_cast<Py_ssize_t>(i))));
  }
}

// An op met through the fallback: does a row serve it, may the CPU, or is it refused?

void find_server(Operation& op, const c10::IValue* arguments) {
  PythonCode python;
  Object answer = call(callbacks().server, {checked(PyUnicode_FromString(op.name.c_str())).get(),
                                            python_arguments(op, arguments).get()});
  if (answer.get() != Py_None) op.cpu_kernel = answer.release();
  op.served = true;
}

void check_bounds(Operation& op, const c10::IValue* arguments) {
  PythonCode python;
  call(callbacks().check_bounds, {checked(PyUnicode_FromString(op.name.c_str())).get(),
                                  python_arguments(op, arguments).get()});
}

}  // namespace tpu
