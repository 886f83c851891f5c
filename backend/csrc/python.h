// The Python side as the core sees it: callbacks, the interpreter lock, errors.
#pragma once

#include <Python.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <initializer_list>
#include <memory>

namespace tpu {

// Holds the interpreter lock, to run Python code with no lock of ours held.
class PythonCode {
 public:
  PythonCode() : state_(PyGILState_Ensure()) {}
  ~PythonCode() { PyGILState_Release(state_); }
  PythonCode(const PythonCode&) = delete;
  PythonCode& operator=(const PythonCode&) = delete;

 private:
  PyGILState_STATE state_;
};

// Holds the interpreter lock with the queue held too. The collector does not run inside: a
// finaliser may call device operations.
class Gil {
 public:
  Gil() : collecting_(PyGC_Disable()) {}
  ~Gil() {
    if (collecting_) PyGC_Enable();
  }

 private:
  PythonCode lock_;
  int collecting_;
};

struct Decref {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
using Object = std::unique_ptr<PyObject, Decref>;  // owned; freed with the interpreter lock held

// Raise the current Python error through torch, traceback kept.
[[noreturn]] void throw_python_error();
// The current Python error as an object, cleared.
PyObject* take_error();

inline Object checked(PyObject* object) {
  if (object == nullptr) throw_python_error();
  return Object(object);
}

// What backend/recorder.py provides; borrowed references that live as long as the process.
struct Callbacks {
  PyObject* server = nullptr;        // (op) -> None for a row, a function for the CPU fallback
  PyObject* describe = nullptr;      // (op, arguments, outputs) -> (record, where, draws)
  PyObject* compile = nullptr;       // (records, live, donated, device) -> executable parts
  PyObject* offset_rule = nullptr;   // (layout, dtype, sizes, strides) -> [(stride, size, max)]
  PyObject* put = nullptr;           // (memory, dtype, sizes, device) -> array
  PyObject* staging = nullptr;       // (dtype, count, device) -> (array, address), or None
  PyObject* zeros = nullptr;         // (dtype, sizes, device) -> array
  PyObject* host_view = nullptr;     // (array, op, where) -> address or buffer
  PyObject* resize = nullptr;        // (array, dtype, nbytes, device) -> (array, dtype, sizes)
  PyObject* copy_to_device = nullptr;  // (array, device) -> array
  PyObject* check_bounds = nullptr;  // (op, arguments) -> None, or raises
  PyObject* translate = nullptr;     // (error, op, where, device): raises
  PyObject* marker = nullptr;        // (device) -> array, or None where work is never behind
  PyObject* consume = nullptr;       // method of execute results: (results, handlers) -> arrays
  PyObject* is_ready = nullptr;      // (array) -> bool
  PyObject* wait = nullptr;          // (array) -> None
};
Callbacks& callbacks();
void set_callbacks(PyObject* module);

Object call(PyObject* function, std::initializer_list<PyObject*> arguments);

Object dtype_object(c10::ScalarType dtype);
c10::ScalarType dtype_from(PyObject* object);
Object int_tuple(c10::IntArrayRef values);
std::vector<int64_t> ints_from(PyObject* sequence);

bool is_ready(PyObject* array);
void wait_for(PyObject* array);

// Start the runtime if it is not up: imports the device module and runs its lazy initialisation.
void ensure_ready();

}  // namespace tpu
