// Caches per thread, so that the usual event takes no lock and makes no text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "journal/string_table.h"

namespace lanescope {

struct Operator;

// Address of an operator's name -> the operator. Names are not compared, which would be two more
// cache misses: if torch has deregistered an operator, `version` differs.
struct OperatorCache {
  static constexpr size_t SLOTS = 1024;
  struct Slot {
    const char* key = nullptr;
    const Operator* op = nullptr;
  };
  std::vector<Slot> slots = std::vector<Slot>(SLOTS);
  uint32_t version = 0;

  Slot& slot(const char* key) {
    // Names are aligned, so the lowest bits are always 0.
    const auto address = reinterpret_cast<uintptr_t>(key) >> 3;
    return slots[(address * 0x9E3779B97F4A7C15u >> 40) % SLOTS];
  }
  void clear() { std::fill(slots.begin(), slots.end(), Slot{}); }
};

// Hash of shapes, dtypes and device -> text. With 10^5 signatures, two collide in one of 4 x 10^9
// programs.
struct SignatureCache {
  static constexpr size_t PAIRS = 512;
  struct Slot {
    uint64_t hash = 0;
    Text text = 0;
  };
  struct Pair {
    Slot last, before;  // the two met last
  };
  std::vector<Pair> pairs = std::vector<Pair>(PAIRS);

  // Returns the slot of a signature; if its `hash` differs, the text is still to be stored there.
  Slot& slot(uint64_t hash) {
    Pair& pair = pairs[(hash >> 8) % PAIRS];
    if (pair.last.hash != hash && pair.last.hash != 0) {
      if (pair.before.hash == hash) {
        return pair.before;
      }
      pair.before = pair.last;
    }
    return pair.last;
  }
};

// Stacks that the thread has met, by hash. Capturing one costs as much as fifty operators.
class MetStacks {
 public:
  // Returns the stack's text, UNKNOWN the first time.
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

  static constexpr size_t MIN_SLOTS = 256;
  static constexpr size_t MAX_SLOTS = 1 << 16;  // 1 MB; beyond that it starts again empty

  [[gnu::noinline]] void grow() {
    std::vector<Slot> before = std::move(slots_);
    slots_.assign(before.empty() ? MIN_SLOTS : std::min(4 * before.size(), MAX_SLOTS), Slot{});
    used_ = 0;
    if (before.size() == MAX_SLOTS) {
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

// Names passed as text at each call: autograd nodes, user scopes, functions without a schema.
struct NameCache {
  static constexpr size_t SLOTS = 256;
  static constexpr size_t MAX_PROBES = 8;  // slots in a row that are tried for a name
  struct Slot {
    std::string name;
    Text text = 0;
    bool used = false;
    bool wanted = true;
    const Operator* op = nullptr;  // for a function without a schema
  };
  std::vector<Slot> slots = std::vector<Slot>(SLOTS);

  Slot& find(std::string_view name);
  void forget_operators() {
    for (Slot& slot : slots) {
      slot.op = nullptr;
    }
  }

 private:
  static Slot& fill(Slot& slot, std::string_view name);
};

}  // namespace lanescope
