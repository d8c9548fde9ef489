// Tells Python stacks apart without holding the interpreter's lock.
//
// While a thread runs an operator, the frames it came from stay as they are: nobody else changes
// them. So the thread may read its own, each a code object and a position in it. What is read only
// names the stack (a hash of both, frame by frame); its text is made once, with the lock, by
// capture_stack(). Where the fields lie is not part of Python's interface and differs between
// versions: `find_raw_frames` tries the known layouts on the calling thread's own stack, against what
// Python itself says, and without a match this is off.
#pragma once

#include <cstdint>
#include <memory>

#include "texts.h"

namespace lanescope {

// Try the layouts, on a thread that Python calls from, with the lock held. Whether one fits.
bool find_raw_frames();

// A hash of the calling thread's innermost frames; 0: it has none, or no layout fits.
uint64_t raw_stack();

// Stacks that the thread has met, by hash. A thread meets few; where two share a slot, the one met
// later is captured anew.
class MetStacks {
 public:
  Text* find(uint64_t hash) {
    if (!slots_) {
      slots_ = std::make_unique<Slot[]>(SLOTS);
    }
    Slot& slot = slots_[hash >> 53];
    if (slot.hash == hash) {
      return &slot.text;
    }
    slot.hash = hash;
    slot.text = UNKNOWN;
    return &slot.text;
  }

  void forget() {
    slots_.reset();
  }

  static constexpr Text UNKNOWN = ~Text{0};

 private:
  static constexpr uint32_t SLOTS = 1 << 11;
  struct Slot {
    uint64_t hash;
    Text text;
  };
  std::unique_ptr<Slot[]> slots_;
};

}  // namespace lanescope
