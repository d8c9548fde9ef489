// Notices that a process makes no progress when Python itself cannot: needs no interpreter's lock.
#pragma once

#include <cstdint>
#include <string>

namespace lanescope {

// A number that changes with every record of any thread. 0: not to be had at this moment.
uint64_t progress();

struct WatchSettings {
  std::string folder;  // the process's, in the journal
  int dump_signal;     // makes Python write all its stacks; 0: there is none
  int descriptor;      // into which: open for the time of a dump
  int64_t timeout_ns;  // without a record; 0: never looks
  bool abort;          // end the process after a dump
};

// Watch this process from now on, in a thread of its own, and note the signals that end it.
void watch(WatchSettings settings);

// Python's own watchdog has looked: this one need not.
void watched();

void stop_watching();

}  // namespace lanescope
