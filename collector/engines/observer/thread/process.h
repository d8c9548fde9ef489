// What the threads of a process share: folder, list of threads, counters, patterns.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "journal/journal.h"

namespace lanescope {

class Thread;

// One thread writes at a time; others read to sum up.
struct Counters {
  enum Reason {
    FILTERED,     // ops left out by name
    SHORTER,      // ops below the minimum duration
    FAKE,         // ops that a compiler traced on tensors without data
    UNTRACKED,    // tensors whose storage cannot be determined
    ERRORS,       // exceptions in a callback
    UNREAD,       // tensors without a fingerprint
    DROPPED,      // records lost for lack of room
    OVERWRITTEN,  // records overwritten by later ones
    SIGNATURES,   // ops whose signature exceeded the limit
    TEXTS,        // names and stacks that exceeded the limit
    REASONS,
  };
  std::atomic<uint64_t> counts[REASONS]{};

  void add(Reason reason, uint64_t count = 1) {
    // Only the owner writes, so no locked instruction is needed.
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
  Counters gone;  // of ended threads
  Journal kept;   // records that later ones must not overwrite

  // Begins a recording, or continues it in a forked child. Creates no file before the first thread.
  // `keep_last`: bytes that the journals may hold, 0 for no limit.
  void begin(std::string in_folder, uint64_t keep_last);
  void end();
  // Stores a record that later ones must not overwrite.
  void keep(const Record& record);
  void describe(std::string text);
  // Creates the folder and its files, once. Needs the mutex.
  void open();
  void count(uint64_t (&into)[Counters::REASONS]);
};

Process& process();

}  // namespace lanescope
