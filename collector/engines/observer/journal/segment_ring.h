// Bounds the size of a process's journals; segment_ring.py describes how and does the same in
// Python.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

namespace lanescope {

class Ring {
 public:
  // Call when a recording begins. 0: no bound.
  void begin(uint64_t limit);

  // Changes between recordings only.
  bool on() const { return limit_ != 0; }

  // Makes room for a segment of at most `wanted` bytes. Returns the bytes it may have, 0 for none.
  uint64_t take(uint64_t wanted, bool kept);

  // Adds a full segment of `taken` bytes, `used` of them filled, to the history. 0: never created.
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
