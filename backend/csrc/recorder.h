// The recorder: one boxed kernel for every operation of the device.
//
// Locks. The queue orders everything recorded and run; whoever waits for it does not hold the
// interpreter lock, and the interpreter lock may be taken while holding it. Meta kernels, lowering
// and compilation run with neither.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cell.h"
#include "trie.h"

namespace tpu {

struct Argument {
  bool dynamic = false;  // scalars are run-time operands, not part of the key
  c10::IValue standard;  // the schema's default: a dynamic scalar with this value is a constant
  bool write = false;
  bool out = false;
  enum Kind : uint8_t { kPlain, kDtype, kLayout, kMemoryFormat } kind = kPlain;
};

// What the recorder knows of an operation, from its schema and the lowering table.
struct Operation {
  explicit Operation(c10::OperatorHandle handle);
  c10::OperatorHandle handle;
  std::string name;
  std::vector<Argument> arguments;
  bool seeded = false;  // draws random numbers (torch's tag)
  bool views = false;   // returns an alias that is not written
  bool bounds = false;  // has data-dependent indices that debug mode checks
  bool writes = false;
  bool overlaps = false;  // torch lets it write memory that overlaps itself
  std::atomic<bool> served{false};  // it is known what serves it
  PyObject* cpu_kernel = nullptr;   // no row does: the CPU fallback that the user asked for

  // A Python function that serves some calls, and who decides: asked once per operands' kinds.
  PyObject* composed_when = nullptr;
  PyObject* composed = nullptr;
  std::unordered_map<std::vector<uint64_t>, bool, KeyHash> composed_for;
};

Operation& operation(const c10::OperatorHandle& handle);
// Register the recorder for an operation; `dynamic` has a flag per argument.
void register_operation(const std::string& name, const std::vector<bool>& dynamic, bool bounds,
                        bool overlaps);
void register_fallback();
void compose_operation(const std::string& name, PyObject* when, PyObject* function);

// Words that every key of this thread begins with: what else a program depends on.
void set_thread_context(uint64_t word);

void record(Operation& op, torch::jit::Stack* stack);

// Take the queue: releases the interpreter lock while it waits.
class Queue {
 public:
  Queue();
  ~Queue();
  void release();
  void acquire();

 private:
  bool held_ = false;
};

// Give the queue up for a scope.
class Unlocked {
 public:
  explicit Unlocked(Queue& queue) : queue_(queue) {
    process().preparing++;
    queue_.release();
  }
  ~Unlocked() {
    process().preparing--;
    queue_.acquire();
  }

 private:
  Queue& queue_;
};

void flush();                             // run what is recorded
void synchronize(c10::DeviceIndex device);  // and wait for it
bool is_idle(c10::DeviceIndex device);
// An array that is ready when all work issued so far is; null where work is done when issued.
// New reference; interpreter lock held.
PyObject* marker(c10::DeviceIndex device);

// The value of a cell for reading on the host; raises if it is poisoned. Interpreter lock held.
PyObject* settled_value(Cell* cell);

void resize_storage(c10::StorageImpl* storage, size_t nbytes);

enum class Mode : int { kStrict = 0, kDebug = 1, kDeferred = 2 };
struct Settings {
  std::atomic<int> mode{0};
  std::atomic<int64_t> node_cap{1};  // nodes per trace before it is run
  std::atomic<bool> timing{false};
  std::atomic<bool> excess_precision{false};   // part of every key
  std::atomic<bool> precision_matters{false};  // float32 products have a choice on this platform
};
Settings& settings();

struct Counters {
  std::atomic<int64_t> recorded{0}, hits{0}, misses{0}, executions{0}, transfers{0};
  std::atomic<int64_t> record_ns{0}, execute_ns{0}, transfer_ns{0};
  std::atomic<int64_t> programs{0};
};
Counters& counters();

// Fault injection: the next execution that contains `op` fails as a device would, later.
void inject_failure(const std::string& op);

}  // namespace tpu
