// Run queue delay: how long the calling thread was runnable without a processor, as Linux counts
// it.
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <cstdlib>

#include "base/own_file.h"
#include "layout.h"

namespace lanescope {

// One per thread. A reading takes about 8 us.
class Runnable {
 public:
  // Returns the delay since the last reading in tenths of a millisecond, plus one; 0: not read.
  uint16_t since(int64_t now) {
    if (now - read_at_ < layout::RUNNABLE_INTERVAL_NS) {
      return 0;
    }
    read_at_ = now;
    const int64_t before = total_ns_;
    total_ns_ = total();
    if (before < 0 || total_ns_ < before) {
      return 0;
    }
    const int64_t units = (total_ns_ - before) / layout::RUNNABLE_UNIT_NS + 1;
    return static_cast<uint16_t>(units < UINT16_MAX ? units : UINT16_MAX);
  }

 private:
  static int64_t total() {
    char text[64];
    const ssize_t length =
        OwnFile("/proc/thread-self/schedstat", O_RDONLY).read(text, sizeof text - 1);
    if (length <= 0) {
      return -1;
    }
    text[length] = '\0';
    char* rest = nullptr;
    std::strtoll(text, &rest, 10);  // skips the time on a processor
    char* end = nullptr;
    const int64_t waited = std::strtoll(rest, &end, 10);
    return end == rest ? -1 : waited;
  }

  int64_t read_at_ = 0;
  int64_t total_ns_ = -1;
};

}  // namespace lanescope
