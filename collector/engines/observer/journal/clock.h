// The recorder's clock: that of time.monotonic_ns(), read through the processor's counter.
#pragma once

#include <time.h>

#include <cstdint>

namespace lanescope {

inline int64_t system_now() {
  timespec reading;
  ::clock_gettime(CLOCK_MONOTONIC, &reading);
  return static_cast<int64_t>(reading.tv_sec) * 1'000'000'000 + reading.tv_nsec;
}

// Two readings of the clock per event are a fifth of its cost; using the processor's counter saves
// 23 of 60 ns for each. So the clock is anchored every few milliseconds and extrapolated between
// anchors at the last measured rate, with an error of about 20 ns. Where the system does not use
// the counter, each reading asks the system. One clock per thread; it never runs backwards.
class Clock {
 public:
  int64_t now() {
#if defined(__x86_64__)
    const uint64_t elapsed = __builtin_ia32_rdtsc() - anchor_.ticks;
    if (__builtin_expect(elapsed < limit_, 1)) {
      return anchor_.ns + static_cast<int64_t>(elapsed * rate_ >> RATE_BITS);
    }
#endif
    return set_anchor();
  }

  struct Point {
    uint64_t ticks = 0;
    int64_t ns = 0;
  };

 private:
  static constexpr int RATE_BITS = 32;  // of the fraction; ticks of a window times it fit 64 bits

  int64_t set_anchor();

  Point anchor_;
  uint64_t limit_ = 0;   // ticks for which the anchor is valid; 0: no anchor
  uint64_t rate_ = 0;    // ns per tick
  uint64_t window_ = 0;  // ticks for which the next anchor will be valid
  Point reference_;      // where the rate is measured from
  int64_t latest_ = 0;   // no reading before the last anchor was later
};

}  // namespace lanescope
