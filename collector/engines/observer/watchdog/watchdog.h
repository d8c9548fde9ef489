// Detects that a process makes no progress when Python cannot: needs no interpreter lock.
#pragma once

#include <cstdint>
#include <string>

namespace lanescope {

// Returns a number that changes with every record of any thread. 0: not available now.
uint64_t progress();

struct WatchSettings {
  std::string folder;  // the process's, in the journal
  int dump_signal;     // makes Python write all stacks; 0: none
  int descriptor;      // number of the dump's file, open only during a dump
  int64_t timeout_ns;  // without a record; 0: never looks
  bool abort;          // end the process after a dump
};

// Watches this process from a new thread, and records the signal that ends it.
void watch(WatchSettings settings);

// Call when Python's watchdog has looked: this one need not.
void watched();

void stop_watching();

}  // namespace lanescope
