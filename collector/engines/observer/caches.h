// What each thread remembers, so that the usual event takes no lock and makes no text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "texts.h"

namespace lanescope {

struct Operator;

// Pointer of an operator's name -> the operator. The name is compared, so that an address used
// again is found out.
struct OperatorCache {
  static constexpr size_t SLOTS = 512;
  struct Slot {
    const char* key = nullptr;
    const Operator* op = nullptr;
  };
  std::vector<Slot> slots = std::vector<Slot>(SLOTS);

  Slot& slot(const char* key) {
    // Names are aligned strings: the lowest bits say nothing.
    const auto address = reinterpret_cast<uintptr_t>(key) >> 3;
    return slots[(address * 0x9E3779B97F4A7C15u >> 40) % SLOTS];
  }
};

// Hash of shapes, dtypes and device -> text. Among 10^5 signatures two share their 64 bits once in
// 4 x 10^9 programs.
struct SignatureCache {
  static constexpr size_t SLOTS = 1024;
  struct Slot {
    uint64_t hash = 0;
    Text text = 0;
  };
  std::vector<Slot> slots = std::vector<Slot>(SLOTS);
};

// Names that come as text each time: autograd nodes, user scopes, functions without a schema.
struct NameCache {
  static constexpr size_t SLOTS = 256;
  static constexpr size_t TRIED = 8;  // slots in a row that a name may have: few names meet in all
  struct Slot {
    std::string name;
    Text text = 0;
    bool used = false;
    bool wanted = true;
    const Operator* op = nullptr;  // of a function without a schema
  };
  std::vector<Slot> slots = std::vector<Slot>(SLOTS);

  Slot& find(std::string_view name);

 private:
  static Slot& fill(Slot& slot, std::string_view name);
};

}  // namespace lanescope
