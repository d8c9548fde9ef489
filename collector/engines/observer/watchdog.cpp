#include "watchdog.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <pthread.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include "clock.h"
#include "process.h"
#include "python_stacks.h"
#include "thread.h"

namespace lanescope {

namespace {

constexpr int64_t LOOK_NS = 1'000'000'000;
constexpr int64_t STUCK_NS = 3 * LOOK_NS;  // Python's watchdog did not come to look for so long
constexpr int ENDING[] = {SIGTERM, SIGHUP, SIGQUIT, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};

struct Watch {
  WatchSettings settings{};
  int64_t pid = 0;
  std::atomic<int64_t> python{0};  // when its watchdog last looked
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

void put(int file, const char* text, size_t bytes) {
  const ssize_t written = ::write(file, text, bytes);
  static_cast<void>(written);  // nowhere to say it
}

// One line about a dump. Called from a signal's handler too: no memory, no lock.
void dump(const WatchSettings& to, const char* reason, int64_t now, int64_t idle) {
  const off_t from = ::lseek(to.stacks, 0, SEEK_END);
  write_python_stacks(to.dump_signal);
  const off_t until = ::lseek(to.stacks, 0, SEEK_END);
  char line[256];
  const int bytes = std::snprintf(
      line, sizeof line,
      "{\"time_ns\": %lld, \"duration_ns\": %lld, \"reason\": \"%s\", \"raw\": [%lld, %lld]}\n",
      static_cast<long long>(now), static_cast<long long>(idle), reason,
      static_cast<long long>(from), static_cast<long long>(until));
  put(to.stalls, line, static_cast<size_t>(bytes));
}

void on_ending_signal(int number) {
  Watch& all = watch_state();
  if (::getpid() == all.pid) {
    const char* name = ::sigabbrev_np(number);
    char text[64];
    const int bytes =
        std::snprintf(text, sizeof text, "signal SIG%s", name != nullptr ? name : "?");
    put(all.settings.ended, text, static_cast<size_t>(bytes));
    if (number == SIGTERM) {  // a launcher gives up: what was it doing?
      dump(all.settings, "signal", system_now(), 0);
    }
  }
  ::signal(number, SIG_DFL);
  ::raise(number);
}

void note_signals() {
  for (const int number : ENDING) {
    struct sigaction before {};
    if (::sigaction(number, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) {
      continue;  // the program's own
    }
    struct sigaction mine {};
    mine.sa_handler = on_ending_signal;
    ::sigemptyset(&mine.sa_mask);
    ::sigaction(number, &mine, nullptr);
  }
}

void look(uint64_t serial) {
  Watch& all = watch_state();
  sigset_t others;  // the program's signals go to its threads
  ::sigfillset(&others);
  for (const int own : {all.settings.dump_signal, SIGSEGV, SIGBUS}) {
    ::sigdelset(&others, own);
  }
  ::pthread_sigmask(SIG_SETMASK, &others, nullptr);
  uint64_t mark = 0;
  int64_t since = system_now(), due = all.settings.timeout_ns;
  std::unique_lock<std::mutex> hold(all.mutex);
  while (!all.wake.wait_for(hold, std::chrono::nanoseconds(LOOK_NS),
                            [&] { return all.stop || all.serial != serial; })) {
    const uint64_t found = progress();
    const int64_t now = system_now();
    if (found != mark && found != 0) {
      mark = found;
      since = now;
      due = all.settings.timeout_ns;
      continue;
    }
    if (now - since < due || now - all.python.load() < STUCK_NS) {
      continue;
    }
    dump(all.settings, "no_progress", now, now - since);
    due *= 2;
    if (all.settings.abort) {
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

void watch(const WatchSettings& settings) {
  Watch& all = watch_state();
  if (all.pid != ::getpid()) {  // a forked child: who held the lock stayed behind
    new (&all.mutex) std::mutex;
    new (&all.wake) std::condition_variable;
  }
  uint64_t serial = 0;
  {
    std::lock_guard<std::mutex> hold(all.mutex);
    all.settings = settings;
    all.pid = ::getpid();
    all.stop = false;
    serial = ++all.serial;
    all.python = system_now();
  }
  note_signals();
  if (settings.timeout_ns > 0) {
    std::thread(look, serial).detach();
  }
}

void watched() {
  watch_state().python = system_now();
}

void stop_watching() {
  Watch& all = watch_state();
  {
    std::lock_guard<std::mutex> hold(all.mutex);
    all.stop = true;
  }
  all.wake.notify_all();
  for (const int number : ENDING) {
    struct sigaction now {};
    if (::sigaction(number, nullptr, &now) == 0 && now.sa_handler == on_ending_signal) {
      ::signal(number, SIG_DFL);
    }
  }
}

}  // namespace lanescope
