// State of the observer per thread, and how a thread gets it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/recording_state.h"
#include "journal/clock.h"
#include "journal/journal.h"
#include "journal/string_table.h"
#include "thread/caches.h"
#include "thread/frames.h"
#include "thread/modules.h"
#include "thread/process.h"
#include "thread/run_queue_delay.h"
#include "thread/stack_sampling.h"

namespace lanescope {

struct Call;    // a collective being called
struct Values;  // tensors of an operator that are read

// Python writes these fields through a memory view; the thread's events read them.
struct Shared {
  uint32_t phase;       // text of the innermost phase
  uint32_t phase_kind;  // of PhaseKind
  uint32_t module;      // text of the innermost module's path
  uint32_t busy;        // not 0 while the recorder itself works: nothing is recorded
  uint32_t ordinal;
  uint32_t started;  // text of the stack at which the thread, or the task on it, was started
  uint32_t serial;   // distinguishes states that use the same address one after another
  uint32_t modules;  // how many modules are being called
};

// One read or write of a range of bytes.
struct Access {
  uint64_t storage;  // address of its first byte
  int64_t offset;    // of the range, bytes
  int64_t bytes;
  uint32_t version;
  uint32_t flags;   // of AccessFlag in journal.py
  uint32_t stream;  // ordinal; 0: the host
  bool pinned;      // page-locked memory of the host
  int64_t run;      // with gaps: contiguous bytes,
  int64_t stride;   // and bytes from one run to the next; 0: no gaps, -1: irregular gaps
};

class Thread {
 public:
  static constexpr uint32_t MAX_BIRTHS = 64;

  Shared shared{};
  uint64_t run = 0;
  Journal journal;
  Clock clock;
  Counters counters;

  FrameStack frames;
  uint16_t depth = 0;          // nesting of recorded events
  uint32_t muted = 0;          // frames that mute what runs inside
  std::shared_ptr<Call> call;  // of the collective being called
  Runnable runnable;
  Modules modules;

  std::vector<Access> accesses;    // of all frames
  uint64_t born = 0;               // storages allocated on this thread so far,
  uint64_t births[MAX_BIRTHS]{};   // and the last of them
  std::shared_ptr<Values> values;  // at level numerics

  struct Stream {
    uint64_t run = 0;  // recording in which it has that ordinal
    int64_t id = 0;    // torch's
    int device_type = 0, device_index = 0;
    uint32_t ordinal = 0;
  };
  Stream stream;  // that of the last tensor on a device

  MetStacks met;
  StackSamples samples;
  OperatorCache operators;
  SignatureCache signatures;
  NameCache names;

  // Scopes that ended on another thread, for the owner to record. Guarded by the process's mutex;
  // only the count is read without it.
  struct Stray {
    const at::RecordFunction* function;
    int64_t end;
  };
  std::vector<Stray> strays;
  std::atomic<uint32_t> stray_count{0};

  // Stores a record of this thread.
  void append(const Record& record) {
    journal.append(record);
    if (__builtin_expect(journal.dropped() != lost_, 0)) {
      note_lost();
    }
  }
  void note_lost();

  // The stack of open events; an event's level is its position when it began. Fields that are the
  // same in all entries (no end, no sequence, ...) are set when the segment is created.
  uint32_t push_open(uint8_t kind, uint8_t scope, uint16_t nesting, Text name, int64_t start,
                     int32_t step, Text module, Text phase) {
    if (Record* entry = journal.open_entry(open_)) {
      entry->kind = kind;
      entry->scope = scope;
      entry->depth = nesting;
      entry->name = name;
      entry->start = start;
      entry->step = step;
      entry->module = module;
      entry->phase = phase;
    }
    journal.set_open(++open_);
    return open_ - 1;
  }
  void pop_open(uint32_t level);

  void reset();

 private:
  uint64_t lost_ = 0;
  uint32_t open_ = 0;  // events that have begun and not ended
};

// Returns the calling thread's state, created if necessary; null: not recording.
Thread* this_thread();

// The same, called from Python, which knows what the thread is. `ordinal` < 0: the next one.
Thread* enter_thread(int64_t ordinal, uint32_t kind, int64_t created);

// Ends the recording of the calling thread.
void leave_thread();

// Counts an exception of the observer that was kept from the program.
void note_error() noexcept;

// True if the patterns of the settings select events of this name.
bool wanted(const std::string& name);

// Forgets operators: a new recording may filter them differently.
void forget_operators();

// Forgets operators from now on when torch deregisters them.
void watch_operators();

// Forgets what storages hold, after operators that were not recorded.
void forget_values();

namespace detail {
// A single pointer fits into the loader's static TLS space, so no function call is needed to find
// it.
extern __thread Thread* current __attribute__((tls_model("initial-exec")));
Thread* enter(uint64_t run);
}  // namespace detail

inline Thread* this_thread() {
  const uint64_t run = recording.run.load(std::memory_order_acquire);
  Thread* thread = detail::current;
  if (__builtin_expect(thread != nullptr && thread->run == run, 1)) {
    return run != 0 ? thread : nullptr;
  }
  return run != 0 ? detail::enter(run) : nullptr;
}

// Returns the calling thread's state; null if it has none in this recording.
inline Thread* entered_thread() {
  const uint64_t run = recording.run.load(std::memory_order_acquire);
  Thread* thread = detail::current;
  return thread != nullptr && run != 0 && thread->run == run ? thread : nullptr;
}

}  // namespace lanescope
