// Tells Python stacks apart without holding the interpreter's lock.
//
// While a thread runs an operator, the frames it came from stay as they are: nobody else changes
// them. So the thread may read its own, each a code object and a position in it. What is read only
// names the stack (a hash of both, frame by frame); its text is made once, with the lock, by
// capture_stack(). Where the fields lie is not part of Python's interface and differs between
// versions: `find_raw_frames` tries the known layouts on the calling thread's own stack, against what
// Python itself says, and without a match this is off.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "journal/string_table.h"

namespace lanescope {

// Try the layouts, on a thread that Python calls from, with the lock held. Whether one fits.
bool find_raw_frames();

// A hash of the calling thread's innermost frames; 0: it has none, or no layout fits.
uint64_t raw_stack();

// Stacks that the thread has met, by hash. Capturing one takes as long as fifty operators do.
class MetStacks {
 public:
  // Its text; UNKNOWN at the first time.
  Text* find(uint64_t hash) {
    if (__builtin_expect(2 * used_ >= slots_.size(), 0)) {
      grow();
    }
    const size_t last = slots_.size() - 1;
    for (size_t i = hash >> 32 & last;; i = (i + 1) & last) {
      Slot& slot = slots_[i];
      if (slot.hash == hash) {
        return &slot.text;
      }
      if (slot.hash == 0) {
        slot = {hash, UNKNOWN};
        ++used_;
        return &slot.text;
      }
    }
  }

  static constexpr Text UNKNOWN = ~Text{0};

 private:
  struct Slot {
    uint64_t hash = 0;
    Text text = 0;
  };

  static constexpr size_t FEWEST = 256;
  static constexpr size_t MOST = 1 << 16;  // 1 MB; a program with more of them starts again

  [[gnu::noinline]] void grow() {
    std::vector<Slot> before = std::move(slots_);
    slots_.assign(before.empty() ? FEWEST : std::min(4 * before.size(), MOST), Slot{});
    used_ = 0;
    if (before.size() == MOST) {
      return;
    }
    for (const Slot& slot : before) {
      if (slot.hash != 0) {
        *find(slot.hash) = slot.text;
      }
    }
  }

  std::vector<Slot> slots_;
  size_t used_ = 0;
};

}  // namespace lanescope
