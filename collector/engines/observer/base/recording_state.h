// State that every event reads and that rarely changes: it stays in the cache of each core.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

namespace lanescope {

struct alignas(64) RecordingState {
  std::atomic<uint64_t> run{0};         // number of the recording; 0: not recording
  std::atomic<int32_t> step{0};         // training step
  std::atomic<bool> active{false};      // whether that step is recorded
  std::atomic<bool> ordering{false};    // whether what orders threads is, in that step
  std::atomic<uint32_t> taken_away{0};  // how many operators torch has deregistered
  // Settings; they change between recordings only.
  bool access = false;             // record which storages ops read and write
  bool numerics = false;           // read the values of tensors
  bool streams = false;            // record which device stream ops run on
  bool op_stacks = false;          // Python stacks of all ops,
  bool sampled_stacks = false;     // or of some of each kind
  bool collective_stacks = false;  // Python stacks of collectives
  int32_t outputs_every = 0;       // check outputs of modules every N steps; 0: never
  int64_t minimum_ns = 0;          // ops below are left out
  std::atomic<int32_t> fault{0};   // of fault_injection.h; 0 outside tests
};

extern RecordingState recording;

// True at the steps 0, 1, 2, 4, 8, ...
inline bool at_doubling_step() {
  const auto step = static_cast<uint32_t>(recording.step.load(std::memory_order_relaxed));
  return step == 0 || std::has_single_bit(step);
}

}  // namespace lanescope
