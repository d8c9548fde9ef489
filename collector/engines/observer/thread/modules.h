// The modules that a thread is calling, and the paths of those it has called before.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "journal/string_table.h"

namespace lanescope {

// Paths of modules by address. One per thread, so it needs no lock.
class ModulePaths {
 public:
  // Returns the path's text; 0: unknown.
  Text find(const void* module) const {
    if (slots_ == nullptr) {
      return 0;
    }
    const Slot& slot = (*slots_)[place(module)];
    return slot.module == module && slot.destroyed == destroyed().load(std::memory_order_acquire)
               ? slot.path
               : 0;
  }

  void put(const void* module, Text path) {
    if (slots_ == nullptr) {  // allocated late: most threads call no module
      slots_ = std::make_unique<std::array<Slot, SLOTS>>();
    }
    (*slots_)[place(module)] = {module, destroyed().load(std::memory_order_acquire), path};
  }

  // How many modules were destroyed. Another may have taken the address, so each one invalidates
  // all paths.
  static std::atomic<uint64_t>& destroyed() {
    static std::atomic<uint64_t> count{1};
    return count;
  }

 private:
  struct Slot {
    const void* module;
    uint64_t destroyed;
    Text path;
  };
  static constexpr int BITS = 10;
  static constexpr size_t SLOTS = size_t{1} << BITS;

  static size_t place(const void* module) {
    return (reinterpret_cast<uintptr_t>(module) >> 4) * 0x9E3779B97F4A7C15u >> (64 - BITS);
  }

  std::unique_ptr<std::array<Slot, SLOTS>> slots_;
};

struct Modules {
  std::vector<Text> open;  // paths of the modules being called, innermost last
  ModulePaths paths;
};

class Thread;

// The thread enters a module with this path.
void enter_module(Thread& thread, Text path);

// The thread leaves the innermost module, whose path is returned; 0: it was in none.
Text leave_module(Thread& thread);

}  // namespace lanescope
