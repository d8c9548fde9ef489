// Exceptions planted by tests, to show that one in the observer harms nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>

#include "base/recording_state.h"

namespace lanescope {

// Where. Numbers are those that `lanescope_plant` takes.
enum class Fault : int32_t {
  NONE,
  START,   // before an event begins
  BEGUN,   // when its frame is there
  END,     // before it ends
  WRITE,   // when its frame is gone, and its record is not written yet
  STACK,   // while a Python stack is walked
  TEXT,    // while a text is interned
  PYTHON,  // in a function that Python calls
};

inline void fault_at(Fault here) {
  if (__builtin_expect(recording.fault.load(std::memory_order_relaxed) != 0, 0) &&
      recording.fault.load() == static_cast<int32_t>(here)) {
    throw std::runtime_error("planted");
  }
}

}  // namespace lanescope
