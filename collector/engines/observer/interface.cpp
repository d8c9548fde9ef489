// The functions that Python calls through ctypes.

#include <cstdint>
#include <string>
#include <vector>

#include "base/fault_injection.h"
#include "base/recording_state.h"
#include "journal/background_compactor.h"
#include "journal/string_table.h"
#include "numerics/fingerprint.h"
#include "numerics/fingerprint_kernel.h"
#include "numerics/gradients.h"
#include "numerics/norms.h"
#include "operators/observer.h"
#include "stacks/frame_hash.h"
#include "stacks/stacks.h"
#include "storages/extents.h"
#include "storages/streams.h"
#include "thread/process.h"
#include "thread/thread.h"
#include "watchdog/watchdog.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace lanescope;

namespace {

std::vector<std::string> lines(const char* text) {
  std::vector<std::string> found;
  std::string rest = text;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    found.push_back(rest.substr(0, end));
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
  }
  return found;
}

template <typename Body>
auto contain_errors(Body body) noexcept -> decltype(body()) {
  try {
    fault_at(Fault::PYTHON);
    return body();
  } catch (...) {  // out of memory, for example
    note_error();
    return decltype(body())();
  }
}

void put_sync(int32_t kind, int64_t start, int64_t target, uint32_t stack, uint32_t stream = 0) {
  Thread* thread = entered_thread();
  if (thread == nullptr) {
    return;
  }
  Record record{};
  record.kind = layout::KIND_SYNC;
  record.scope = static_cast<uint8_t>(kind);
  record.end = thread->clock.now();
  record.start = start != 0 ? start : record.end;
  record.step = recording.step.load(std::memory_order_relaxed);
  record.module = thread->shared.module;
  record.phase = thread->shared.phase;
  record.stack = stack;
  record.sequence = stream;
  record.extra = target;
  thread->append(record);
}

}  // namespace

// Sets the options of the recording that `lanescope_begin` starts.
EXPORT void lanescope_settings(int32_t access, int32_t numerics, int32_t op_stacks,
                               int32_t sampled_stacks, int32_t collective_stacks, int32_t streams,
                               int32_t outputs_every, int64_t minimum_ns) {
  recording.access = access != 0;
  recording.numerics = numerics != 0;
  recording.streams = access != 0 && streams != 0;
  forget_streams();
  recording.op_stacks = op_stacks != 0;
  recording.sampled_stacks = sampled_stacks != 0;
  recording.collective_stacks = collective_stacks != 0;
  recording.outputs_every = outputs_every;
  recording.minimum_ns = minimum_ns;
}

// Sets the patterns of op names, one per line.
EXPORT void lanescope_patterns(const char* include, const char* exclude, const char* deny) {
  contain_errors([&] {
    process().include = lines(include);
    process().exclude = lines(exclude);
    process().deny = lines(deny);
    forget_operators();
  });
}

// Sets folders, one per line, whose frames are left out of stacks, or kept inside `standard`.
EXPORT void lanescope_stacks(int64_t depth, const char* inside, const char* packages,
                             const char* standard) {
  contain_errors([&] {
    set_stack_settings({static_cast<size_t>(depth), lines(inside), lines(packages), standard});
  });
}

// `keep_last`: bytes that the journals may hold, 0 for no limit.
EXPORT void lanescope_begin(const char* folder, int64_t keep_last) {
  contain_errors([&] { process().begin(folder, static_cast<uint64_t>(keep_last)); });
}

// Sets the shell command that starts the run's compactor; empty: none.
EXPORT void lanescope_follow(const char* command) {
  contain_errors([&] { set_follower(command); });
}

EXPORT void lanescope_end() {
  contain_errors([] { process().end(); });
}

EXPORT void lanescope_detach() {
  contain_errors([] { texts().detach(); });
}

EXPORT void lanescope_install() {
  contain_errors([] {
    find_raw_frames();
    watch_operators();
    install();
  });
}

EXPORT void lanescope_remove() {
  contain_errors([] { remove(); });
}

EXPORT void lanescope_moment(int32_t step, int32_t active, int32_t ordering) {
  recording.step = step;
  recording.ordering = ordering != 0;
  if (recording.active.exchange(active != 0) == false && recording.numerics) {
    contain_errors([] { forget_values(); });  // operators in between were not recorded
  }
}

// Stores the fingerprint of the tensor at this address in `into`. Returns 0 if it has none.
EXPORT int32_t lanescope_fingerprint(const c10::TensorImpl* tensor, Fingerprint* into) {
  return contain_errors([&]() -> int32_t {
    if (!can_read(*tensor)) {
      return 0;
    }
    *into = fingerprint(*tensor);
    return 1;
  });
}

// Stores only the hash in `into`. Returns 0 if the tensor has none.
EXPORT int32_t lanescope_hash(const c10::TensorImpl* tensor, int64_t* into) {
  return contain_errors([&]() -> int32_t {
    if (!can_read(*tensor)) {
      return 0;
    }
    *into = static_cast<int64_t>(hash_of(*tensor));
    return 1;
  });
}

// Stores the L2 norms of tensors in `into`. Returns 0 if one of them has none.
EXPORT int32_t lanescope_norms(const c10::TensorImpl* const* tensors, int64_t count, double* into) {
  return contain_errors([&]() -> int32_t {
    Norms norms;
    for (int64_t i = 0; i < count; ++i) {
      if (!has_norm(*tensors[i])) {
        return 0;
      }
      norms.add(*tensors[i]);
    }
    norms.compute();
    for (int64_t i = 0; i < count; ++i) {
      into[i] = norms[i];
    }
    return 1;
  });
}

// Stores the spreads of tensors. Returns 0 if one of them has none.
EXPORT int32_t lanescope_spreads(const c10::TensorImpl* const* tensors, int64_t count,
                                 double* largest, double* nonzero) {
  return contain_errors([&]() -> int32_t {
    for (int64_t i = 0; i < count; ++i) {
      if (!has_spread(*tensors[i])) {
        return 0;
      }
    }
    spreads(tensors, count, largest, nonzero);
    return 1;
  });
}

EXPORT int32_t lanescope_thin(const c10::TensorImpl* const* tensors, int64_t count, int64_t most,
                              double* into) {
  return contain_errors([&] { return thin(tensors, count, most, into) ? 1 : 0; });
}

EXPORT int32_t lanescope_extents(const c10::TensorImpl* const* parameters, int64_t count,
                                 const int32_t* assigning, int64_t* into) {
  return contain_errors([&] { return extents(parameters, count, assigning, into) ? 1 : 0; });
}

EXPORT int64_t lanescope_take_gradients(const c10::TensorImpl* const* parameters, int64_t count,
                                        const int32_t* assigning, uint32_t* left) {
  return contain_errors([&] { return take_gradients(parameters, count, assigning, left); });
}

EXPORT void lanescope_write_gradients(const Record* records, int64_t start) {
  contain_errors([&] { write_gradients(records, start); });
}

// For tests: chooses the kernel of this index; returns how many there are.
EXPORT int32_t lanescope_choose_kernel(int32_t index) {
  return static_cast<int32_t>(choose_kernel(static_cast<size_t>(index)));
}

EXPORT void lanescope_describe(const char* json) {
  contain_errors([&] { process().describe(json); });
}

// For tests: throws at place `fault` of fault_injection.h until called with 0.
EXPORT void lanescope_plant(int32_t fault) {
  recording.fault = fault;
}

// Returns 1 if the folder has been created.
EXPORT int32_t lanescope_opened() {
  std::lock_guard<std::mutex> hold(process().mutex);
  return process().opened ? 1 : 0;
}

// Returns the errno that causes the loss of events, or 0.
EXPORT int32_t lanescope_failure() {
  std::lock_guard<std::mutex> hold(process().mutex);
  return process().failure != 0 ? process().failure : texts().failure();
}

EXPORT uint32_t lanescope_intern(const char* text, int64_t bytes) {
  return contain_errors([&] { return texts().intern({text, static_cast<size_t>(bytes)}); });
}

EXPORT uint32_t lanescope_reserve() {
  std::lock_guard<std::mutex> hold(process().mutex);
  return process().next_ordinal++;
}

EXPORT Shared* lanescope_enter(int64_t ordinal, int32_t kind, int64_t created) {
  return contain_errors([&]() -> Shared* {
    Thread* thread = enter_thread(ordinal, static_cast<uint32_t>(kind), created);
    return thread != nullptr ? &thread->shared : nullptr;
  });
}

EXPORT Shared* lanescope_entered() {
  return contain_errors([]() -> Shared* {
    Thread* thread = entered_thread();
    return thread != nullptr ? &thread->shared : nullptr;
  });
}

EXPORT void lanescope_leave() {
  contain_errors([] { leave_thread(); });
}

// Stores records of the calling thread, which has entered.
EXPORT void lanescope_append(const Record* records, int64_t count) {
  contain_errors([&] {
    if (Thread* thread = entered_thread()) {
      for (const Record* record = records; record != records + count; ++record) {
        thread->append(*record);
      }
    }
  });
}

// Stores a record that later ones must not overwrite (`keep_last`).
EXPORT void lanescope_keep(const Record* record) {
  contain_errors([&] { process().keep(*record); });
}

// Stores a synchronisation event of the calling thread, now. `start`: when its wait began, 0
// without a wait.
EXPORT void lanescope_sync(int32_t kind, int64_t start, int64_t target, uint32_t stack) {
  contain_errors([&] { put_sync(kind, start, target, stack); });
}

// The same without a wait, only within the step window: locks have millions of such events.
EXPORT void lanescope_handover(int32_t kind, int64_t target) {
  contain_errors([&] {
    if (recording.ordering.load(std::memory_order_relaxed)) {
      put_sync(kind, 0, target, 0);
    }
  });
}

// Stores that the calling thread made a device stream record or wait for an event, or waited for
// the device. `event` and `handle` are those of the device's API; `stream`: 0 without one.
EXPORT void lanescope_device_sync(int32_t kind, int64_t event, uint64_t handle, int32_t stream) {
  contain_errors([&] {
    if (recording.streams && recording.ordering.load(std::memory_order_relaxed)) {
      put_sync(kind, 0, event, 0, stream != 0 ? stream_with(handle) : 0);
    }
  });
}

// Stores that an event of the calling thread began; returns its level on the stack of open events.
EXPORT uint32_t lanescope_push_open(const Record* record) {
  return contain_errors([&]() -> uint32_t {
    Thread* thread = entered_thread();
    const Record& r = *record;
    if (thread == nullptr) {
      return 0;
    }
    const uint32_t level =
        thread->push_open(r.kind, r.scope, r.depth, r.name, r.start, r.step, r.module, r.phase);
    if (Record* entry = thread->journal.open_entry(level)) {
      entry->sequence = r.sequence;
      entry->signature = r.signature;
      entry->stack = r.stack;
      entry->aux = r.aux;
      entry->extra = r.extra;
    }
    return level;
  });
}

// Removes it from the stack.
EXPORT void lanescope_pop_open(uint32_t level) {
  contain_errors([&] {
    if (Thread* thread = entered_thread()) {
      if (Record* entry = thread->journal.open_entry(level)) {
        entry->sequence = -1;  // operators rely on these defaults
        entry->signature = entry->stack = entry->aux = 0;
        entry->extra = 0;
      }
      thread->pop_open(level);
    }
  });
}

// The calling thread enters a module.
EXPORT void lanescope_enter_module(const void* module, uint32_t path) {
  contain_errors([&] {
    if (Thread* thread = entered_thread()) {
      thread->modules.paths.put(module, path);
      enter_module(*thread, path);
    }
  });
}

// It leaves the innermost module, whose path is returned.
EXPORT uint32_t lanescope_leave_module() {
  return contain_errors([&]() -> uint32_t {
    Thread* thread = entered_thread();
    return thread != nullptr ? leave_module(*thread) : 0;
  });
}

// A module was destroyed.
EXPORT void lanescope_module_gone() {
  ModulePaths::destroyed().fetch_add(1);
}

EXPORT uint64_t lanescope_progress() {
  return contain_errors([] { return progress(); });
}

EXPORT void lanescope_watch(const char* folder, int32_t dump_signal, int32_t descriptor,
                            int64_t timeout_ns, int32_t abort) {
  contain_errors([&] { watch({folder, dump_signal, descriptor, timeout_ns, abort != 0}); });
}

EXPORT void lanescope_watched() {
  watched();
}

EXPORT void lanescope_stop_watching() {
  contain_errors([] { stop_watching(); });
}

// Fills `into` with the counts of lost and filtered records, in the order of Counters::Reason.
EXPORT void lanescope_count(uint64_t* into) {
  contain_errors([&] {
    uint64_t counts[Counters::REASONS] = {};
    process().count(counts);
    std::copy(std::begin(counts), std::end(counts), into);
  });
}
