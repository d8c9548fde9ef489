// Writes a number about an operator, at the time of its start.
#pragma once

#include <bit>
#include <cstdint>

#include "thread/frames.h"
#include "thread/thread.h"

namespace lanescope {

inline void note_value(Thread& thread, const Frame& frame, const char* name, double value) {
  Record* slot = thread.journal.next();
  if (slot == nullptr) {
    thread.note_lost();
    return;
  }
  slot->name = texts().intern(name);
  slot->start = frame.start;
  slot->sequence = std::bit_cast<int64_t>(value);
  slot->step = frame.step;
  thread.journal.publish(layout::KIND_VALUE);
}

}  // namespace lanescope
