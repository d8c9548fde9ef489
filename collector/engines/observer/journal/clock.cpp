#include "journal/clock.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace lanescope {

#if defined(__x86_64__)

namespace {

constexpr uint64_t WINDOW_TICKS = 1 << 21;          // 0.5 to 1 ms
constexpr uint64_t LONG_WINDOW_TICKS = 1 << 23;     // once the rate is known precisely
constexpr uint64_t MAX_READING_TICKS = 2'000;       // longer: the thread was interrupted
constexpr uint64_t RATE_TICKS = uint64_t{1} << 31;  // some 0.7 s: the rate to 10^-7

bool read_point(Clock::Point& point) {
  const uint64_t before = __builtin_ia32_rdtsc();
  point.ns = system_now();
  const uint64_t after = __builtin_ia32_rdtsc();
  point.ticks = before + (after - before) / 2;
  return after - before < MAX_READING_TICKS;
}

// True if the system derives its clock from this counter: then all cores agree on it and its rate
// is constant.
bool usable() {
  char name[16] = "";
  if (FILE* file =
          std::fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re")) {
    if (std::fgets(name, sizeof name, file) == nullptr) {
      name[0] = '\0';
    }
    std::fclose(file);
  }
  return std::strncmp(name, "tsc", 3) == 0;
}

struct Start {
  bool usable = lanescope::usable();
  Clock::Point point;
  Start() { usable = usable && read_point(point); }
};

const Start& start() {
  static const Start instance;
  return instance;
}

}  // namespace

int64_t Clock::set_anchor() {
  const Start& first = start();
  Point here;
  const bool read = read_point(here);
  // The last reading may be ahead of the system clock by the error of the rate.
  if (limit_ != 0) {
    const auto elapsed = static_cast<int64_t>(here.ticks - anchor_.ticks);
    const auto held = std::clamp<int64_t>(elapsed, 0, static_cast<int64_t>(limit_));
    latest_ = anchor_.ns + static_cast<int64_t>(static_cast<uint64_t>(held) * rate_ >> RATE_BITS);
    limit_ = 0;
  }
  const int64_t now = std::max(here.ns, latest_);
  if (!read || !first.usable) {
    return now;
  }
  if (reference_.ticks == 0) {
    reference_ = first.point;
  }
  const uint64_t since = here.ticks - reference_.ticks;
  if (rate_ == 0 || since > RATE_TICKS) {
    if (since < WINDOW_TICKS) {
      return now;  // too early to know the rate
    }
    rate_ = static_cast<uint64_t>(
        (static_cast<unsigned __int128>(here.ns - reference_.ns) << RATE_BITS) / since);
    reference_ = here;
    window_ = since > RATE_TICKS ? LONG_WINDOW_TICKS : WINDOW_TICKS;
  }
  anchor_ = {here.ticks, now};
  limit_ = window_;
  return now;
}

#else

int64_t Clock::set_anchor() {
  return system_now();
}

#endif

}  // namespace lanescope
