// Streams of devices: which one an operator's work goes to, and what orders them.
#pragma once

#include <c10/core/TensorImpl.h>

#include <cstdint>

#include "base/recording_state.h"
#include "thread/thread.h"

namespace lanescope {

// Ordinal of the stream of a device that has this handle (of the device's own interface), from 1: in
// the order in which they are first met. The default stream, whose handle is 0, is FIRST on any
// device: devices whose default streams are taken for one seem better ordered than they are.
uint32_t stream_with(uint64_t handle);
constexpr uint32_t FIRST_STREAM = 1;

// A new recording counts anew.
void forget_streams();

uint32_t current_stream(Thread& thread, c10::Device device);

// The stream that the calling thread's work on a tensor goes to; 0: the host does it itself, or it
// is not asked for.
inline uint32_t stream_of(Thread& thread, const c10::TensorImpl& tensor) {
  if (__builtin_expect(!recording.streams || tensor.is_cpu(), 1)) {
    return 0;
  }
  return current_stream(thread, tensor.device());
}

}  // namespace lanescope
