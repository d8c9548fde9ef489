// Events of a thread that have begun, innermost last.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "journal/string_table.h"

namespace at {
struct RecordFunction;
}

namespace lanescope {

struct Operator;  // what is known of an operator

struct Frame {
  const at::RecordFunction* function;  // identifies it: one that runs has its address to itself
  const Operator* op;                  // null for nodes and scopes
  int64_t start;
  int64_t sequence;  // of a node; of an operator the next number at its start, -1: makes no node
  uint64_t births;   // storages born on this thread before it began
  int32_t step;
  Text name, module, phase, signature, stack;
  uint32_t accesses;    // where its own begin
  uint32_t open_level;  // its place on the stack of open events
  uint16_t depth;
  uint8_t scope;
  bool opened;      // is on the stack of open events, and counts for the depth
  bool silent;      // no record of its own: it is here for the storages that are born in it
  bool mutes;       // what runs inside is not recorded
  bool collective;  // it began the call of its thread
  bool values;      // its tensors are read
  bool blind;       // at level numerics: what runs inside may write without an operator
};

// A stack without the cost of filling a new entry with zeros: whoever pushes sets all it needs.
class FrameStack {
 public:
  Frame& push() {
    if (__builtin_expect(count_ == frames_.size(), 0)) {
      frames_.resize(2 * frames_.size());
    }
    return frames_[count_++];
  }

  bool empty() const { return count_ == 0; }
  bool within(uint8_t scope) const {
    for (size_t i = 0; i < count_; ++i) {
      if (frames_[i].scope == scope) {
        return true;
      }
    }
    return false;
  }
  Frame& top() { return frames_[count_ - 1]; }
  void pop() { --count_; }
  void clear() { count_ = 0; }

  // Takes out the frame of an event that does not end in order. False: there is none.
  bool take(const at::RecordFunction* function, Frame& frame) {
    for (size_t i = count_; i-- != 0;) {
      if (frames_[i].function == function) {
        frame = frames_[i];
        std::memmove(&frames_[i], &frames_[i] + 1, (count_ - i - 1) * sizeof(Frame));
        --count_;
        return true;
      }
    }
    return false;
  }

 private:
  std::vector<Frame> frames_ = std::vector<Frame>(64);
  size_t count_ = 0;
};

}  // namespace lanescope
