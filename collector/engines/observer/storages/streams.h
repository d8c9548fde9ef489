// Device streams: which one an operator's work goes to, and what orders them.
#pragma once

#include <c10/core/TensorImpl.h>

#include <cstdint>

#include "base/recording_state.h"
#include "thread/thread.h"

namespace lanescope {

// Returns the ordinal, from 1, of the stream with this handle (of the device's API), numbered in
// order of first use. The default stream, handle 0, is FIRST_STREAM on every device, so default
// streams of several devices look better ordered than they are.
uint32_t stream_with(uint64_t handle);
constexpr uint32_t FIRST_STREAM = 1;

// A new recording starts numbering at 1.
void forget_streams();

uint32_t current_stream(Thread& thread, c10::Device device);

// Returns whether a host tensor is in page-locked memory: a copy between that and a device may go
// on after its call has returned (CUDA C++ Programming Guide, "Asynchronous Concurrent Execution").
bool is_pinned(const c10::TensorImpl& tensor);

// Returns the stream that the calling thread's work on a tensor goes to. 0: the host does the work,
// or streams are not recorded.
inline uint32_t stream_of(Thread& thread, const c10::TensorImpl& tensor) {
  if (__builtin_expect(!recording.streams || tensor.is_cpu(), 1)) {
    return 0;
  }
  return current_stream(thread, tensor.device());
}

}  // namespace lanescope
