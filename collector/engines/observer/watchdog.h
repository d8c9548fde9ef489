// Notices that a process makes no progress when Python itself cannot: needs no interpreter's lock.
#pragma once

#include <cstdint>

namespace lanescope {

// A number that changes with every record of any thread. 0: not to be had at this moment.
uint64_t progress();

struct WatchSettings {
  int dump_signal;      // makes Python write all its stacks into `stacks`; 0: there is none
  int stacks;           // descriptors, open for appending
  int stalls;
  int ended;
  int64_t timeout_ns;   // without a record; 0: never looks
  bool abort;           // end the process after a dump
};

// Watch this process from now on, in a thread of its own, and note the signals that end it.
void watch(const WatchSettings& settings);

// Python's own watchdog has looked: this one need not.
void watched();

void stop_watching();

}  // namespace lanescope
