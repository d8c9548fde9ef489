// The recorder's clock: that of time.monotonic_ns().
#pragma once

#include <cstdint>
#include <time.h>

namespace lanescope {

inline int64_t now() {
  timespec reading;
  ::clock_gettime(CLOCK_MONOTONIC, &reading);
  return static_cast<int64_t>(reading.tv_sec) * 1'000'000'000 + reading.tv_nsec;
}

}  // namespace lanescope
