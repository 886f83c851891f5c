#include "stream.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <memory>
#include <vector>

#include "cell.h"
#include "clock.h"
#include "device.h"
#include "python.h"
#include "recorder.h"

namespace tpu {

namespace {

std::atomic<c10::StreamId> next_stream{1};
thread_local std::vector<c10::StreamId> t_streams;

struct Event {
  std::atomic<int64_t> done_ns{0};  // 0 while the marked work may still run
  PyObject* marker = nullptr;       // a runtime array that is ready when the work is
  bool timed = false;
  bool recorded = false;
};

// Settle an event whose work has finished; waits if asked to.
bool settle(Event& event, bool wait) {
  if (event.done_ns != 0 || !event.recorded) return true;
  Gil gil;
  if (event.marker == nullptr) return true;
  if (!wait && !is_ready(event.marker)) return false;
  wait_for(event.marker);
  int64_t expected = 0;
  event.done_ns.compare_exchange_strong(expected, now_ns());
  Py_CLEAR(event.marker);
  return true;
}

}  // namespace

c10::Device indexed(c10::Device device) {
  return {c10::kPrivateUse1, device.has_index() ? device.index() : current_device()};
}

c10::Stream current_stream(c10::Device device) {
  c10::Device full = indexed(device);
  auto at = static_cast<size_t>(full.index());
  return c10::Stream(c10::Stream::UNSAFE, full, at < t_streams.size() ? t_streams[at] : 0);
}

c10::Stream exchange_stream(c10::Stream stream) {
  auto at = static_cast<size_t>(stream.device_index());
  c10::Stream before = current_stream(stream.device());
  if (t_streams.size() <= at) t_streams.resize(at + 1, 0);
  t_streams[at] = stream.id();
  return before;
}

c10::Stream new_stream(c10::Device device) {
  return c10::Stream(c10::Stream::UNSAFE, indexed(device), next_stream++);
}

void record_event(void** handle, const c10::Stream& stream, c10::EventFlag flag) {
  flush();
  if (*handle == nullptr) *handle = new Event();
  auto& event = *static_cast<Event*>(*handle);
  event.timed = flag == c10::EventFlag::BACKEND_DEFAULT;
  event.recorded = true;
  Gil gil;
  Py_XSETREF(event.marker, marker(stream.device_index()));
  event.done_ns = event.marker == nullptr || is_ready(event.marker) ? now_ns() : 0;
  if (event.done_ns != 0) Py_CLEAR(event.marker);
}

void block_on_event(void*) {}  // one in-order queue: the work is ahead of ours already

bool query_event(void* handle) {
  return handle == nullptr || settle(*static_cast<Event*>(handle), false);
}

void synchronize_event(void* handle) {
  if (handle != nullptr) settle(*static_cast<Event*>(handle), true);
}

void destroy_event(void* handle) noexcept {
  if (handle == nullptr) return;
  auto* event = static_cast<Event*>(handle);
  if (event->marker != nullptr && !is_off()) {
    Gil gil;
    Py_CLEAR(event->marker);
  }
  delete event;
}

double elapsed_ms(void* start, void* end) {
  TORCH_CHECK(start != nullptr && end != nullptr,
              "tpu: elapsed_time needs two events that have been recorded");
  auto& first = *static_cast<Event*>(start);
  auto& last = *static_cast<Event*>(end);
  TORCH_CHECK(first.timed && last.timed,
              "tpu: elapsed_time needs events made with enable_timing=True");
  settle(first, true);
  settle(last, true);
  return static_cast<double>(last.done_ns - first.done_ns) / 1e6;
}

}  // namespace tpu
