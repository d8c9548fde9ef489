#include "watchdog/watchdog.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>

#include "base/blocked_signals.h"
#include "base/own_file.h"
#include "journal/clock.h"
#include "layout.h"
#include "stacks/python_stacks.h"
#include "thread/process.h"
#include "thread/thread.h"
#include "watchdog/standstill.h"

namespace lanescope {

namespace {

constexpr int64_t LOOK_NS = 1'000'000'000;
constexpr int64_t STUCK_NS = 3 * LOOK_NS;  // Python's watchdog has not looked for this long
constexpr size_t ENDED_BYTES = 64;
constexpr int64_t MIN_STANDSTILL_NS = 2 * LOOK_NS;  // for which all threads were seen waiting
constexpr int ENDING[] = {SIGTERM, SIGHUP, SIGQUIT, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr int ASKING[] = {SIGTERM, SIGHUP, SIGQUIT};  // whichever thread gets them

struct Place {
  WatchSettings settings;
  std::string stacks, stalls;  // files
};

struct Watch {
  // Read by a signal handler: that of an earlier recording is never destroyed.
  std::atomic<const Place*> place{nullptr};
  // Receives the signal that ends the process. Mapped, as a handler may be unable to open files.
  std::atomic<char*> ended{nullptr};
  int64_t pid = 0;
  std::atomic<int64_t> python{0};         // when its watchdog last looked
  std::atomic<int64_t> python_thread{0};  // which thread that is
  std::mutex mutex;
  std::condition_variable wake;
  bool stop = false;
  uint64_t serial = 0;  // of the thread that watches
};

Watch& watch_state() {
  // Never destroyed: its thread is not waited for.
  static Watch& instance = *new Watch;
  return instance;
}

// Writes one line about a dump. Also called from a signal handler: allocates nothing, takes no
// lock.
void dump(const Place& to, const char* reason, int64_t now, int64_t idle) {
  int64_t from = 0, until = 0;
  {
    OwnFile stacks(to.stacks.c_str(), O_WRONLY | O_CREAT | O_APPEND);
    from = stacks.size();
    if (to.settings.dump_signal != 0 && stacks.move_to(to.settings.descriptor)) {
      write_python_stacks(to.settings.dump_signal);
    }
    until = stacks.size();
  }
  char line[256];
  const int bytes = std::snprintf(
      line, sizeof line,
      "{\"time_ns\": %lld, \"duration_ns\": %lld, \"reason\": \"%s\", \"raw\": [%lld, %lld]}\n",
      static_cast<long long>(now), static_cast<long long>(idle), reason,
      static_cast<long long>(from), static_cast<long long>(until));
  OwnFile stalls(to.stalls.c_str(), O_WRONLY | O_CREAT | O_APPEND);
  stalls.write(line, static_cast<size_t>(bytes));
}

void on_ending_signal(int number) {
  Watch& all = watch_state();
  if (::getpid() == all.pid) {
    char* ended = all.ended.load();
    if (ended != nullptr && ended[0] == '\0') {
      const char* name = ::sigabbrev_np(number);
      const bool asks = std::find(std::begin(ASKING), std::end(ASKING), number) != std::end(ASKING);
      std::snprintf(ended, ENDED_BYTES, asks ? "signal SIG%s" : "signal SIG%s in %ld",
                    name != nullptr ? name : "?", ::syscall(SYS_gettid));
    }
    const Place* place = all.place.load();
    if (number == SIGTERM && place != nullptr) {  // a launcher gives up: show the stacks
      dump(*place, "signal", system_now(), 0);
    }
  }
  ::signal(number, SIG_DFL);
  ::raise(number);
}

void forget_ended() {
  if (char* ended = watch_state().ended.exchange(nullptr)) {
    ::munmap(ended, ENDED_BYTES);
  }
}

void note_signals() {
  for (const int number : ENDING) {
    struct sigaction before{};
    if (::sigaction(number, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) {
      continue;  // the program handles it itself
    }
    struct sigaction mine{};
    mine.sa_handler = on_ending_signal;
    ::sigemptyset(&mine.sa_mask);
    ::sigaction(number, &mine, nullptr);
  }
}

void look(uint64_t serial) {
  Watch& all = watch_state();
  ::pthread_setname_np(::pthread_self(),
                       "lanescope-watch");  // see collector/watchdog/thread_states.py
  const Place& place = *all.place.load();
  const int64_t timeout = place.settings.timeout_ns;
  uint64_t mark = 0;
  int64_t since = system_now(), due = timeout;
  Standstill standstill;
  std::unique_lock<std::mutex> hold(all.mutex);
  while (!all.wake.wait_for(hold, std::chrono::nanoseconds(LOOK_NS),
                            [&] { return all.stop || all.serial != serial; })) {
    const uint64_t found = progress();
    const int64_t now = system_now();
    if (found != mark && found != 0) {
      mark = found;
      since = now;
      due = timeout;
      standstill.forget();
      continue;
    }
    if (now - all.python.load() < STUCK_NS) {
      standstill.forget();
      continue;
    }
    // The samples show it a few seconds after the lock was taken for good.
    standstill.look(now, all.python_thread.load());
    const bool ends = place.settings.abort && now - since >= timeout &&
                      standstill.lasted(now) + STUCK_NS + 2 * LOOK_NS >= timeout &&
                      standstill.lasted(now) >= MIN_STANDSTILL_NS;
    if (now - since < due && !ends) {
      continue;
    }
    dump(place, ends ? "abort" : "no_progress", now, now - since);
    due *= 2;
    if (ends) {
      ::_exit(1);
    }
  }
}

}  // namespace

uint64_t progress() {
  Process& here = process();
  std::unique_lock<std::mutex> hold(here.mutex, std::try_to_lock);
  if (!hold.owns_lock()) {
    return 0;
  }
  uint64_t sum = 1;
  for (const Thread* thread : here.threads) {
    sum += thread->journal.position();
  }
  return sum;
}

void watch(WatchSettings settings) {
  Watch& all = watch_state();
  if (all.pid != ::getpid()) {  // a forked child: the lock's owner is not in it
    new (&all.mutex) std::mutex;
    new (&all.wake) std::condition_variable;
  }
  uint64_t serial = 0;
  {
    std::lock_guard<std::mutex> hold(all.mutex);
    const std::string folder = settings.folder + "/";
    all.place = new Place{std::move(settings), folder + layout::STALL_STACKS_FILE,
                          folder + layout::STALLS_FILE};
    forget_ended();
    all.ended = OwnFile((folder + layout::ENDED_FILE).c_str(), O_RDWR | O_CREAT).map(ENDED_BYTES);
    all.pid = ::getpid();
    all.stop = false;
    serial = ++all.serial;
    all.python = system_now();
  }
  note_signals();
  if (all.place.load()->settings.timeout_ns > 0) {
    const BlockedSignals blocked;
    std::thread(look, serial).detach();
  }
}

void watched() {
  watch_state().python = system_now();
  watch_state().python_thread = ::syscall(SYS_gettid);
}

void stop_watching() {
  Watch& all = watch_state();
  {
    std::lock_guard<std::mutex> hold(all.mutex);
    all.stop = true;
  }
  all.wake.notify_all();
  for (const int number : ENDING) {
    struct sigaction now{};
    if (::sigaction(number, nullptr, &now) == 0 && now.sa_handler == on_ending_signal) {
      ::signal(number, SIG_DFL);
    }
  }
  forget_ended();
}

}  // namespace lanescope
