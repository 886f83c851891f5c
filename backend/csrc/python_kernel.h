// Calls that Python code serves: compositions, the CPU fallback, and checks in debug mode.
#pragma once

#include <ATen/core/stack.h>

#include "recorder.h"

namespace tpu {

// Is this call one that the operation's composition takes?
bool is_composed(Operation& op, const c10::IValue* arguments);
// Serve a call by a Python function of its arguments.
void run_python(Operation& op, PyObject* function, torch::jit::Stack* stack);
// An op met through the fallback: does a row serve it, may the CPU, or is it refused?
void find_server(Operation& op, const c10::IValue* arguments);
// Debug mode: raise for an index out of bounds.
void check_bounds(Operation& op, const c10::IValue* arguments);

}  // namespace tpu
