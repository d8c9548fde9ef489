// Events of a thread that have begun, innermost last.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "journal/string_table.h"

namespace at {
struct RecordFunction;
}

namespace lanescope {

struct Operator;

struct Frame {
  const at::RecordFunction* function;  // identifies the event: running ones have distinct addresses
  const Operator* op;                  // null for nodes and scopes
  int64_t start;
  int64_t averaged;  // elements whose mean it may take; -1: no such mean
  double factor;     // of a blend; 0: none that is recorded
  double wrapped;    // share of its bytes that begin again
  int64_t sequence;  // of a node; for an operator the next number at its start; -1: makes no node
  uint64_t births;   // storages allocated on this thread before it began
  int32_t step;
  Text name, module, phase, signature, stack;
  uint32_t accesses;    // index of its first access
  uint32_t open_level;  // its position on the stack of open events
  uint16_t depth;
  uint8_t scope;
  bool opened;      // on the stack of open events, and counted in the depth
  bool silent;      // has no record; only the storages that it allocates are recorded
  bool mutes;       // nothing inside it is recorded
  bool collective;  // it began the thread's collective call
  bool values;      // its tensors are read for fingerprints
  bool blind;       // at level numerics: code inside may write without an operator
};

// A stack that does not zero new entries: the caller of `push` sets all fields. A frame stays where
// it is while others begin: capturing its stack may run a destructor of the program, with operators
// of its own.
class FrameStack {
 public:
  Frame& push() {
    if (__builtin_expect(count_ == BLOCK * blocks_.size(), 0)) {
      blocks_.push_back(std::make_unique<Block>());
    }
    return slot(count_++);
  }

  bool empty() const { return count_ == 0; }
  bool within(uint8_t scope) const {
    for (size_t i = 0; i < count_; ++i) {
      if (slot(i).scope == scope) {
        return true;
      }
    }
    return false;
  }
  // True if an operator that has a record is running.
  bool within_operator() const {
    for (size_t i = 0; i < count_; ++i) {
      if (slot(i).op != nullptr && slot(i).opened) {
        return true;
      }
    }
    return false;
  }
  Frame& top() { return slot(count_ - 1); }
  void pop() { --count_; }
  void clear() { count_ = 0; }

  // Removes the frame of an event that ends out of order. False if it has none.
  bool take(const at::RecordFunction* function, Frame& frame) {
    for (size_t i = count_; i-- != 0;) {
      if (slot(i).function == function) {
        frame = slot(i);
        for (--count_; i < count_; ++i) {
          slot(i) = slot(i + 1);
        }
        return true;
      }
    }
    return false;
  }

 private:
  static constexpr size_t BLOCK = 64;
  using Block = std::array<Frame, BLOCK>;

  Frame& slot(size_t i) const { return (*blocks_[i / BLOCK])[i % BLOCK]; }

  std::vector<std::unique_ptr<Block>> blocks_;
  size_t count_ = 0;
};

}  // namespace lanescope
