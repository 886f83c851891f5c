// The Python module: what backend/device.py and recorder.py call.

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <pthread.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "device.h"
#include "trace.h"

namespace tpu {

namespace {

namespace py = pybind11;

py::dict stats() {
  auto& c = counters();
  py::dict result;
  result["recorded"] = c.recorded.load();
  result["hits"] = c.hits.load() - c.misses.load();
  result["misses"] = c.misses.load();
  result["executions"] = c.executions.load();
  result["transfers"] = c.transfers.load();
  result["programs"] = c.programs.load();
  result["record_ns"] = c.record_ns.load();
  result["execute_ns"] = c.execute_ns.load();
  result["transfer_ns"] = c.transfer_ns.load();
  return result;
}

py::dict memory(int device) {
  auto& use = memory_use(static_cast<c10::DeviceIndex>(device));
  py::dict result;
  result["allocated"] = use.current.load();
  result["peak"] = use.peak.load();
  return result;
}

// The runtime array that a tensor's storage holds, or None; for interoperation and tests.
py::object value_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().is_privateuseone(), "tpu: expected a device tensor, got one on ",
              tensor.device());
  {
    py::gil_scoped_release release;
    flush();
  }
  return py::reinterpret_borrow<py::object>(settled_value(cell_of(tensor.unsafeGetTensorImpl())));
}

void start(int device_count) {
  process().device_count = device_count;
  static std::once_flag watched;
  std::call_once(watched, [] {
    pthread_atfork(nullptr, nullptr, [] { process().forked = process().ready.load(); });
  });
  process().enabled = true;
  process().ready = true;
}

// At exit: run what is recorded, then keep the queue for good. A thread that goes on recording
// stops there, without the interpreter lock; if it asked for that lock during finalisation,
// Python would end it in the middle of our frames and with it the process.
void shut_down() {
  py::gil_scoped_release release;
  flush();
  static auto* last = new Queue();
  (void)last;
  process().exiting = true;
  // Let such threads arrive there, from a compile too. Those that record no more are not waited
  // for long.
  for (int ms = 0; ms < 60000; ms++) {
    bool arrived = process().waiting >= process().threads - 1 || ms >= 300;
    if (arrived && process().preparing == 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  register_device();
  register_fallback();
  auto released = py::call_guard<py::gil_scoped_release>();
  m.def("set_callbacks", [](py::object table) { set_callbacks(table.ptr()); });
  m.def("register_operation", &register_operation);
  m.def("compose", [](const std::string& name, py::object when, py::object function) {
    compose_operation(name, when.ptr(), function.ptr());
  });
  m.def("set_thread_context", &set_thread_context);
  m.def("set_excess_precision", [](bool on) { settings().excess_precision = on; });
  m.def("set_precision_matters", [](bool on) { settings().precision_matters = on; });
  m.def("enable", [](int count) {
    process().device_count = count;
    process().enabled = count > 0;
  });
  m.def("enabled", [] { return process().enabled.load(); });
  m.def("start", &start);
  m.def("shut_down", &shut_down);
  m.def("in_bad_fork", [] { return process().forked.load(); });
  m.def("current_device", [] { return int(current_device()); });
  m.def("set_current_device", [](int device) {
    set_current_device(static_cast<c10::DeviceIndex>(device));
  });
  m.def("flush", &flush, released);
  m.def("synchronize", [](int device) { synchronize(static_cast<c10::DeviceIndex>(device)); },
        released);
  m.def("stats", &stats);
  m.def("memory", &memory);
  m.def("reset_peak_memory", [](int device) {
    auto& use = memory_use(static_cast<c10::DeviceIndex>(device));
    use.peak = use.current.load();
  });
  m.def("value_of", &value_of);
  m.def("default_generator", [](int device) {
    return default_generator(static_cast<c10::DeviceIndex>(device));
  });
  m.def("set_mode", [](int mode, int64_t node_cap) {
    {
      py::gil_scoped_release release;
      flush();
    }
    settings().mode = mode;
    settings().node_cap = node_cap;
  });
  m.def("set_timing", [](bool on) { settings().timing = on; });
  m.def("inject_failure", &inject_failure, released);
}

}  // namespace tpu
