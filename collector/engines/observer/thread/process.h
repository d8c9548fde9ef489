// What the threads of a process share beside the moment: folder, threads, counts, patterns.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "journal/journal.h"

namespace lanescope {

class Thread;

// Written by one thread at a time, read by others when they sum up.
struct Counters {
  enum Reason {
    FILTERED,     // ops left out by name
    SHORTER,      // ops below the minimum duration
    FAKE,         // ops that a compiler traced on tensors without data
    UNTRACKED,    // tensors whose storage cannot be told
    ERRORS,       // exceptions in a callback
    UNREAD,       // tensors without a fingerprint
    DROPPED,      // records that found no room
    OVERWRITTEN,  // records that made room for later ones
    SIGNATURES,   // ops whose shapes were too many to note
    TEXTS,        // names and stacks that were too many to note
    REASONS,
  };
  std::atomic<uint64_t> counts[REASONS]{};

  void add(Reason reason, uint64_t count = 1) {
    // The owner alone writes: no locked instruction is needed.
    counts[reason].store(counts[reason].load(std::memory_order_relaxed) + count,
                         std::memory_order_relaxed);
  }
  uint64_t get(int reason) const { return counts[reason].load(std::memory_order_relaxed); }
};

struct Process {
  // Patterns of op names; they change between recordings only.
  std::vector<std::string> include, exclude, deny;

  // All below is guarded by the mutex.
  std::mutex mutex;
  uint64_t runs = 0;
  int64_t pid = 0;
  std::string folder;
  std::string description;  // what process.json says
  bool opened = false;
  int failure = 0;
  uint32_t next_ordinal = 1;
  uint32_t next_serial = 1;
  std::vector<Thread*> threads;
  Counters gone;  // of threads that ended
  Journal kept;   // what later records must not overwrite, where those of threads are bounded

  // A recording begins, or goes on in a forked child: nothing is on disk before the first thread.
  // `keep_last`: how many bytes the journals may hold, 0 for all.
  void begin(std::string in_folder, uint64_t keep_last);
  void end();
  // Store a record that later ones must not overwrite.
  void keep(const Record& record);
  void describe(std::string text);
  // Make the folder with all that belongs in it, once. With the mutex held.
  void open();
  void count(uint64_t (&into)[Counters::REASONS]);
};

Process& process();

}  // namespace lanescope
