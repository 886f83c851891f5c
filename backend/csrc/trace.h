// The open trace: what has been recorded and not yet run. All of it is guarded by the queue.
#pragma once

#include <ATen/core/ivalue.h>

#include "recorder.h"
#include "trie.h"

namespace tpu {

struct Trace {
  uint64_t id = 1;
  c10::DeviceIndex device = 0;
  Node* at = nullptr;  // the last node, or the device's root
  std::vector<Node*> nodes;
  std::vector<c10::Storage> externals;  // kept alive until the trace has run
  std::vector<Cell*> pending;           // cells whose value is a result of this trace
  std::vector<int64_t> ints;            // dynamic operands
  std::vector<double> floats;
  uint32_t results = 0;
};
Trace& trace();
Node* root(c10::DeviceIndex device);

// The key of one call, and what was noticed while it was built.
struct Key {
  std::vector<uint64_t> words;
  c10::DeviceIndex device = -1;
  bool repeats = false;  // a storage occurs twice: written memory may overlap
};

// A place to return to when a call cannot be recorded yet.
struct Mark {
  size_t externals, ints, floats;
};
Mark mark();
void roll_back(const Mark& mark);

// Build the key of a call in the open trace; numbers new external inputs and adds dynamic operands.
void build_key(const Operation& op, const c10::IValue* arguments, Key& key);
// The same call as Python data for lowering: one entry per argument (see recorder.py).
Object describe_arguments(const Operation& op, const c10::IValue* arguments, const Mark& at);
// The arguments themselves as Python objects, for checks in debug mode.
Object python_arguments(const Operation& op, const c10::IValue* arguments);

uint64_t thread_context();

bool is_device_tensor(const c10::IValue& value);

// The cells an operation writes, in schema order.
template <typename F>
void for_each_written(const Operation& op, const c10::IValue* arguments, F&& visit) {
  for (size_t i = 0; i < op.arguments.size(); i++) {
    if (!op.arguments[i].write) continue;
    const auto& value = arguments[i];
    if (value.isTensor()) {
      if (value.toTensor().defined()) visit(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor() && item.toTensor().defined()) visit(item.toTensor());
      }
    }
  }
}

// The tensor without conjugate, negative and zero-tensor bits.
at::Tensor resolved(const at::Tensor& tensor);

// Raise for a dtype that the device does not have.
void check_dtype(c10::ScalarType dtype);

// Make `cell` a result of the open trace.
void assign_result(Cell* cell, const Origin* origin);

// Run the open trace with the queue held. `rethrow`: a failure is also raised here. `program` is
// the one to run, if the caller has found it.
void run_trace(bool rethrow, Executable* program = nullptr);
// The program for the open trace extended by `node`, or null: it must be compiled first.
Executable* ready_executable(Node* node, const std::vector<uint32_t>& live,
                             const std::vector<int32_t>& donated);
std::unique_ptr<Executable> compile_program(const std::vector<PyObject*>& records,
                                            std::vector<uint32_t> live,
                                            std::vector<int32_t> donated,
                                            c10::DeviceIndex device);

}  // namespace tpu
