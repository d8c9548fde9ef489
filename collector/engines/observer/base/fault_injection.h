// Throws where a test asks for it, to show that an exception in the observer harms nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>

#include "base/recording_state.h"

namespace lanescope {

// Places to throw at. `lanescope_plant` takes these numbers.
enum class Fault : int32_t {
  NONE,
  START,   // before an event begins
  BEGUN,   // after its frame was pushed
  END,     // before it ends
  WRITE,   // after its frame was popped, before its record is written
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
