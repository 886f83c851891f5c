// Streams and events. A device has one in-order queue: a stream is a name for a place in it, so
// work on two streams runs in the order it was issued, and waiting on another stream is free.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace tpu {

c10::Device indexed(c10::Device device);
c10::Stream current_stream(c10::Device device);
c10::Stream exchange_stream(c10::Stream stream);
c10::Stream new_stream(c10::Device device);

// An event marks the work issued so far. With a runtime that runs ahead of the host it holds the
// last result and is done when that is; times are the host's monotonic clock at completion.
void record_event(void** event, const c10::Stream& stream, c10::EventFlag flag);
void block_on_event(void* event);
bool query_event(void* event);
void synchronize_event(void* event);
void destroy_event(void* event) noexcept;
double elapsed_ms(void* start, void* end);

}  // namespace tpu
