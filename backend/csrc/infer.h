// What a call seen for the first time will do.
#pragma once

#include <ATen/core/ivalue.h>

#include "recorder.h"
#include "trie.h"

namespace tpu {

// Returns and resizes of a call, by torch's Meta kernel. Raises torch's own shape errors.
void infer(const Operation& op, const c10::IValue* arguments, Node& node);

// The Meta kernels' messages are not always the CPU kernels'. Ask the CPU with zeros: raises what
// it raises, or returns.
void raise_as_on_cpu(const Operation& op, const c10::IValue* arguments);

// Overlapping memory: the boxed path skips torch's checks, so they are made here.
void check_written_once(const Operation& op, const c10::IValue* arguments);
void check_partial_overlap(const Operation& op, const c10::IValue* arguments);

// Make the node's Python record from the description of its arguments. Interpreter lock held.
void describe(const Operation& op, Object arguments, Node& node);

}  // namespace tpu
