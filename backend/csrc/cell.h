// A storage is a mutable cell that points at an immutable XLA value; a view is geometry on a cell.
#pragma once

#include <Python.h>
#include <c10/core/Allocator.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tpu {

// The shape of a cell's value, interned. Its row-major flattening is the storage's memory.
struct Layout {
  c10::ScalarType dtype;
  std::vector<int64_t> sizes;
  size_t nbytes;
};
const Layout* intern_layout(c10::ScalarType dtype, c10::IntArrayRef sizes);

// Where an operation was first recorded: for messages. Interned and kept for good.
struct Origin {
  std::string op;
  std::string where;
};

// Why a value does not exist. Everything computed from it shares the failure.
struct Failure {
  std::string text;
};

struct KeyHash {
  size_t operator()(const std::vector<uint64_t>& key) const;
};

constexpr uint32_t kExternal = 0x80000000u;

struct Cell {
  // Owned reference to a runtime array; read and written with the interpreter lock held.
  PyObject* value = nullptr;
  const Layout* layout = nullptr;  // null: nothing stored yet, the memory is bytes
  std::shared_ptr<Failure> failure;
  const Origin* origin = nullptr;
  void* address = nullptr;
  size_t nbytes = 0;
  int64_t held = 0;  // bytes of device memory that `value` is accounted for
  c10::DeviceIndex device = 0;

  // The recorder's, under its lock: in trace `trace` this cell is node or external input `id`.
  uint64_t trace = 0;
  uint32_t id = 0;
  int32_t external = -1;  // its number among the inputs of the open trace
  int32_t pending = -1;   // its place among the cells that the open trace writes

  Cell* previous = nullptr;  // of the cells whose storages live
  Cell* next = nullptr;
};

// The storages' allocator. It also answers torch.accelerator.memory_*.
c10::Allocator* allocator();
c10::DataPtr allocate(size_t nbytes, c10::DeviceIndex device);

void delete_cell(void* context);  // the deleter that marks a DataPtr as ours
// The cell behind a storage that torch made around one of our addresses (from_blob, DLPack); raises
// if there is none.
Cell* cell_at(const c10::StorageImpl* storage);

inline Cell* cell_of(const c10::StorageImpl* storage) {
  const c10::DataPtr& data = storage->data_ptr();
  if (data.get_deleter() != &delete_cell) return cell_at(storage);
  return static_cast<Cell*>(data.get_context());
}
inline Cell* cell_of(const c10::TensorImpl* tensor) {
  return cell_of(tensor->unsafe_storage().unsafeGetStorageImpl());
}

// The layout of a cell that may not have one yet: its bytes.
const Layout* layout_of(Cell* cell);

// Replace a cell's value and account for the bytes; steals the reference. Interpreter lock held.
// A donated predecessor's memory lives on in the new value.
void set_value(Cell* cell, PyObject* value, bool donated = false);

// Cells whose storages were freed since the last call. The caller holds the interpreter lock
// before it calls free_cell on each.
std::vector<Cell*> take_dead_cells();
void free_cell(Cell* cell);
bool has_dead_cells();

// Bytes held by values, for one device.
struct MemoryUse {
  std::atomic<int64_t> current{0}, peak{0}, allocated{0}, freed{0}, allocations{0};
};
constexpr int kMaxDevices = 64;
MemoryUse& memory_use(c10::DeviceIndex device);

// Process-wide state that guards deleters and exit hooks.
struct Process {
  std::atomic<bool> exiting{false};
  std::atomic<bool> enabled{false};  // the user asked for the device, or a chip was found
  std::atomic<bool> ready{false};    // callbacks are set and the runtime is up
  std::atomic<bool> forked{false};   // this is a child of the process that started the runtime
  std::atomic<int> device_count{0};
  std::atomic<int> threads{0};  // alive that have made device tensors
  std::atomic<int> waiting{0};  // of them, for the queue
  std::atomic<int> preparing{0};  // of them, lowering or compiling
};
extern Process* const the_process;  // never destroyed
inline Process& process() { return *the_process; }
// Deleters and exit hooks do nothing where the runtime is not ours to touch.
inline bool is_off() { return process().exiting || process().forked; }

}  // namespace tpu
