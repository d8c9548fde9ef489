// Bounds what the journals of a process hold; segment_ring.py says how, and is the same for Python.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

namespace lanescope {

class Ring {
 public:
  // A recording begins; 0: without a bound.
  void begin(uint64_t limit);

  // Changes between recordings only.
  bool on() const { return limit_ != 0; }

  // Make room for a segment of `wanted` bytes at most; how many it may have, 0 for none.
  uint64_t take(uint64_t wanted, bool kept);

  // A segment of `taken` bytes is history now, `used` bytes long; 0: it was never made.
  void seal(std::string path, uint64_t taken, uint64_t used, uint64_t records);

  uint64_t overwritten();

  // Held over a fork, so that the child's copy is whole and its lock free.
  std::mutex mutex;

 private:
  struct Sealed {
    std::string path;
    uint64_t bytes, records;
  };

  uint64_t limit_ = 0;
  // All below is guarded by the mutex.
  std::deque<Sealed> history_;
  uint64_t live_ = 0, total_ = 0, kept_ = 0;
  uint64_t overwritten_ = 0;
};

Ring& ring();

}  // namespace lanescope
