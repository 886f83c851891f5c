#include "cell.h"

#include <c10/core/AutogradState.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <array>
#include <mutex>
#include <unordered_map>

#include "address.h"
#include "device.h"
#include "recorder.h"

namespace tpu {

namespace {

std::mutex dead_mutex;
std::vector<Cell*>& dead_cells() {
  static auto* cells = new std::vector<Cell*>();
  return *cells;
}

Cell* living = nullptr;  // guarded by dead_mutex, as the links are

void join_living(Cell* cell) {
  std::lock_guard<std::mutex> lock(dead_mutex);
  cell->next = living;
  if (living != nullptr) living->previous = cell;
  living = cell;
}

void leave_living(Cell* cell) {
  (cell->previous == nullptr ? living : cell->previous->next) = cell->next;
  if (cell->next != nullptr) cell->next->previous = cell->previous;
}

// Device threads of autograd gain a recorder nothing: an op is only recorded there. Said where a
// thread first makes a device tensor, since a backward may be the first thing it then does; the
// engine may also have started, for CPU tensors, before there was a device to make a thread for.
void keep_backward_on_this_thread() {
  struct Registration {
    Registration() { process().threads++; }
    ~Registration() { process().threads--; }
  };
  thread_local bool done = false;
  if (done) return;
  done = true;
  thread_local Registration registration;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

void raise_peak(MemoryUse& use, int64_t now) {
  int64_t peak = use.peak.load();
  while (peak < now && !use.peak.compare_exchange_weak(peak, now)) {
  }
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    return tpu::allocate(nbytes, current_device());
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_cell; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "tpu: device memory has no host address; copy tensors, not storages' bytes");
  }
  bool initialized() override { return process().ready; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    flush();
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& use = memory_use(device);
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    for (auto* stat : {&stats.allocated_bytes[kAll], &stats.reserved_bytes[kAll],
                       &stats.active_bytes[kAll], &stats.requested_bytes[kAll]}) {
      stat->current = use.current;
      stat->peak = use.peak;
      stat->allocated = use.allocated;
      stat->freed = use.freed;
    }
    stats.allocation[kAll].allocated = use.allocations;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    memory_use(device).allocated = memory_use(device).freed = memory_use(device).allocations = 0;
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    memory_use(device).peak = memory_use(device).current.load();
  }
};

}  // namespace

Process* const the_process = new Process();

// Runs without any lock of ours and without the interpreter lock: it only queues the cell.
void delete_cell(void* context) {
  if (is_off()) return;  // the parent's runtime is not ours to touch
  auto* cell = static_cast<Cell*>(context);
  addresses().give_back(cell->address, cell->nbytes);
  std::lock_guard<std::mutex> lock(dead_mutex);
  leave_living(cell);
  dead_cells().push_back(cell);
}

Cell* cell_at(const c10::StorageImpl* storage) {
  const void* address = storage->data();
  {
    std::lock_guard<std::mutex> lock(dead_mutex);
    for (Cell* cell = living; cell != nullptr; cell = cell->next) {
      if (cell->address == address && address != nullptr) return cell;
    }
  }
  TORCH_CHECK(false, "tpu: a storage that the device did not allocate (made from a raw pointer, or "
              "from DLPack with an offset); copy the data instead, for example through .cpu()");
}

c10::Allocator* allocator() {
  static auto* instance = new Allocator();
  return instance;
}

c10::DataPtr allocate(size_t nbytes, c10::DeviceIndex device) {
  keep_backward_on_this_thread();
  auto* cell = new Cell();
  try {
    cell->address = addresses().take(nbytes);
  } catch (...) {
    delete cell;
    throw;
  }
  cell->nbytes = nbytes;
  cell->device = device;
  join_living(cell);
  return {cell->address, cell, &delete_cell, c10::Device(c10::kPrivateUse1, device)};
}

const Layout* intern_layout(c10::ScalarType dtype, c10::IntArrayRef sizes) {
  static std::mutex mutex;
  static auto* table = new std::unordered_map<std::string, const Layout*>();
  std::string key(1, static_cast<char>(dtype));
  key.append(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof(int64_t));
  std::lock_guard<std::mutex> lock(mutex);
  auto& entry = (*table)[key];
  if (entry == nullptr) {
    size_t nbytes = c10::elementSize(dtype);
    for (int64_t size : sizes) nbytes *= size;
    entry = new Layout{dtype, sizes.vec(), nbytes};
  }
  return entry;
}

const Layout* layout_of(Cell* cell) {
  if (cell->layout == nullptr) {
    cell->layout = intern_layout(c10::kByte, {static_cast<int64_t>(cell->nbytes)});
  }
  return cell->layout;
}

void set_value(Cell* cell, PyObject* value, bool donated) {
  auto& use = memory_use(cell->device);
  int64_t before = cell->held;
  cell->held = value == nullptr ? 0 : static_cast<int64_t>(layout_of(cell)->nbytes);
  if (!donated) {  // for a moment both values exist
    use.allocated += cell->held;
    use.allocations += cell->held != 0;
    use.freed += before;
    raise_peak(use, use.current += cell->held);
    use.current -= before;
  }
  PyObject* old = cell->value;
  cell->value = value;
  Py_XDECREF(old);
}

std::vector<Cell*> take_dead_cells() {
  std::vector<Cell*> cells;
  std::lock_guard<std::mutex> lock(dead_mutex);
  cells.swap(dead_cells());
  return cells;
}

bool has_dead_cells() {
  std::lock_guard<std::mutex> lock(dead_mutex);
  return !dead_cells().empty();
}

void free_cell(Cell* cell) {
  set_value(cell, nullptr);
  delete cell;
}

MemoryUse& memory_use(c10::DeviceIndex device) {
  static auto* uses = new std::array<MemoryUse, kMaxDevices>();
  TORCH_CHECK(device >= 0 && device < kMaxDevices, "tpu: no device with index ", int(device));
  return (*uses)[device];
}

}  // namespace tpu
