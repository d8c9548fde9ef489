// Samples Python stacks of operators: the first few of each kind, then fewer and fewer.
#pragma once

#include <cstdint>
#include <memory>

#include "journal/string_table.h"

namespace lanescope {

// A stack costs about 50 times as much as an operator's record. So after a first allowance at most
// one operator in SPACING has its stack captured, for any number of kinds.
class StackSamples {
 public:
  // True if the stack of this operator, called in a module and a phase, is to be captured.
  bool due(Text op, Text module, Text phase) {
    if (!slots_) {
      slots_ = std::make_unique<Slot[]>(SLOTS);
    }
    ++seen_;
    uint64_t key = (uint64_t{op} << 32 | module) * 0x9E3779B97F4A7C15ULL;
    key = (key ^ phase ^ key >> 29) * 0xBF58476D1CE4E5B9ULL;
    Slot& slot = slots_[key >> 53];
    const auto tag = static_cast<uint32_t>(key);
    if (slot.tag != tag) {
      slot = {tag, 0};
    }
    const uint32_t next = slot.count + 1;
    if (next > FIRST && (next & (next - 1)) != 0) {
      slot.count = next;
      return false;
    }
    if (captured_ * SPACING >= seen_ + ALLOWANCE) {
      return false;  // remains due until the budget allows it
    }
    slot.count = next;
    ++captured_;
    return true;
  }

 private:
  static constexpr uint32_t SLOTS = 1 << 11;
  static constexpr uint32_t FIRST = 4;
  static constexpr uint64_t SPACING = 64;
  static constexpr uint64_t ALLOWANCE = 1024 * SPACING;

  struct Slot {
    uint32_t tag;  // the kind that it counts
    uint32_t count;
  };
  std::unique_ptr<Slot[]> slots_;
  uint64_t seen_ = 0;
  uint64_t captured_ = 0;
};

}  // namespace lanescope
