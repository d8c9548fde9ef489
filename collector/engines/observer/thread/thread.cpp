#include "thread/thread.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "journal/clock.h"

namespace lanescope {

namespace detail {
__thread Thread* current __attribute__((tls_model("initial-exec"))) = nullptr;
}

namespace {

thread_local bool ended = false;  // later events of this thread are not recorded
thread_local uint64_t left = 0;   // the recording that this thread has left

void close_journal(Thread& thread) {
  if (thread.journal.identity().pid == process().pid) {
    thread.journal.close();
  } else {
    thread.journal.abandon();  // a forked child: the files belong to the parent
  }
}

// Its destructor runs when the thread ends.
struct AtExit {
  bool armed = false;
  ~AtExit() {
    Thread* thread = detail::current;
    ended = true;
    detail::current = nullptr;
    if (thread == nullptr) {
      return;
    }
    {
      Process& here = process();
      std::lock_guard<std::mutex> hold(here.mutex);
      const auto found = std::find(here.threads.begin(), here.threads.end(), thread);
      if (found != here.threads.end()) {
        *found = here.threads.back();
        here.threads.pop_back();
        for (int reason = 0; reason < Counters::REASONS; ++reason) {
          here.gone.add(static_cast<Counters::Reason>(reason), thread->counters.get(reason));
        }
      }
    }
    close_journal(*thread);
    delete thread;
  }
};
thread_local AtExit at_exit;

std::string system_name() {
  char name[64] = "";
  return ::pthread_getname_np(::pthread_self(), name, sizeof name) == 0 ? name : "";
}

// The mutex is held.
Thread* begin_thread(Process& here, int64_t ordinal, uint32_t kind, int64_t created) {
  here.open();
  Thread* thread = detail::current;
  if (thread == nullptr) {
    at_exit.armed = true;  // the first use constructs it, so that its destructor runs
    detail::current = thread = new Thread;
  }
  if (std::find(here.threads.begin(), here.threads.end(), thread) == here.threads.end()) {
    here.threads.push_back(thread);
  }
  close_journal(*thread);
  thread->reset();
  Identity identity;
  identity.pid = here.pid;
  identity.native_id = ::syscall(SYS_gettid);
  identity.created = created;
  identity.kind = kind;
  identity.ordinal = ordinal >= 0 ? static_cast<uint32_t>(ordinal) : here.next_ordinal++;
  thread->shared.ordinal = identity.ordinal;
  thread->shared.serial = here.next_serial++;
  thread->journal.begin(here.folder, identity);
  if (thread->journal.failure() != 0 && here.failure == 0) {
    here.failure = thread->journal.failure();
  }
  thread->run = recording.run;
  return thread;
}

}  // namespace

namespace detail {

Thread* enter(uint64_t run) {
  if (ended || left == run) {
    return nullptr;
  }
  Process& here = process();
  const int64_t created = system_now();
  Thread* thread = nullptr;
  {
    std::lock_guard<std::mutex> hold(here.mutex);
    if (recording.run != run) {
      return nullptr;
    }
    const bool main = ::syscall(SYS_gettid) == here.pid;
    thread = begin_thread(here, main ? int64_t{layout::MAIN_ORDINAL} : -1,
                          main ? layout::THREAD_MAIN : layout::THREAD_NATIVE, created);
  }
  Record record{};
  record.kind = layout::KIND_THREAD;
  record.name = texts().intern(
      thread->journal.identity().kind == layout::THREAD_MAIN ? "main" : system_name());
  record.start = record.end = created;
  thread->append(record);
  return thread;
}

}  // namespace detail

Thread* enter_thread(int64_t ordinal, uint32_t kind, int64_t created) {
  Process& here = process();
  std::lock_guard<std::mutex> hold(here.mutex);
  const uint64_t run = recording.run;
  if (run == 0 || ended) {
    return nullptr;
  }
  Thread* thread = detail::current;
  if (thread != nullptr && thread->run == run) {
    thread->journal.set_kind(kind);  // an operator created it; Python knows what the thread is
    return thread;
  }
  return begin_thread(here, ordinal, kind, created);
}

void leave_thread() {
  Thread* thread = detail::current;
  if (thread == nullptr) {
    return;
  }
  left = thread->run;
  thread->run = 0;
  close_journal(*thread);
  thread->reset();
}

void note_error() noexcept {
  if (Thread* thread = entered_thread()) {
    thread->counters.add(Counters::ERRORS);
  }
}

NameCache::Slot& NameCache::find(std::string_view name) {
  const size_t first = std::hash<std::string_view>{}(name);
  for (size_t tried = 0; tried < MAX_PROBES; ++tried) {
    Slot& slot = slots[(first + tried) % SLOTS];
    if (slot.used && slot.name == name) {
      return slot;
    }
    if (!slot.used) {
      return fill(slot, name);
    }
  }
  return fill(slots[first % SLOTS], name);
}

NameCache::Slot& NameCache::fill(Slot& slot, std::string_view name) {
  slot.used = false;  // stays free if one of the next lines throws
  slot.text = texts().intern(name);
  slot.name = name;
  slot.wanted = wanted(slot.name);
  slot.op = nullptr;
  slot.used = true;
  return slot;
}

void Thread::reset() {
  const uint32_t serial = shared.serial, ordinal = shared.ordinal;
  shared = Shared{};
  shared.serial = serial;
  shared.ordinal = ordinal;
  frames.clear();
  modules = Modules{};
  accesses.clear();
  values.reset();
  depth = 0;
  muted = 0;
  call.reset();
  strays.clear();
  stray_count = 0;
  lost_ = 0;
  open_ = 0;
  // Filters may have changed.
  operators.clear();
  std::fill(names.slots.begin(), names.slots.end(), NameCache::Slot{});
}

void Thread::note_lost() {
  const bool first = lost_ == 0;
  counters.add(Counters::DROPPED, journal.dropped() - lost_);
  lost_ = journal.dropped();
  if (!first) {
    return;
  }
  Process& here = process();
  std::lock_guard<std::mutex> hold(here.mutex);
  if (here.failure == 0) {
    here.failure = journal.failure();
  }
}

void Thread::pop_open(uint32_t level) {
  if (open_ == 0) {
    return;
  }
  if (level + 1 >= open_) {
    journal.set_open(--open_);
  } else {  // out of order
    journal.remove_open(level, open_);
    --open_;
  }
}

}  // namespace lanescope
