// What every event reads, and hardly anything writes: it stays in every core's cache.
#pragma once

#include <atomic>
#include <cstdint>

namespace lanescope {

struct alignas(64) RecordingState {
  std::atomic<uint64_t> run{0};         // number of the recording; 0: nothing is recorded
  std::atomic<int32_t> step{0};         // training step
  std::atomic<bool> active{false};      // whether that step is recorded
  std::atomic<uint32_t> taken_away{0};  // how many operators torch no longer knows
  // Settings; they change between recordings only.
  bool access = false;             // note which storages ops read and write
  bool numerics = false;           // read what is in tensors
  bool streams = false;            // note which streams of devices ops go to
  bool op_stacks = false;          // Python stacks of all ops,
  bool sampled_stacks = false;     // or of some of each kind
  bool collective_stacks = false;  // Python stacks of collectives
  int32_t outputs_every = 0;       // steps from one look at what modules return to the next
  int64_t minimum_ns = 0;          // ops below are left out
  std::atomic<int32_t> fault{0};   // of fault_injection.h; 0 but in tests
};

extern RecordingState recording;

}  // namespace lanescope
