#include "stacks/python_stacks.h"

#include <pthread.h>

#include <atomic>
#include <csetjmp>
#include <csignal>

namespace lanescope {

namespace {

constexpr int FAULTS[] = {SIGSEGV, SIGBUS};

struct Reading {
  std::atomic<bool> busy{false};
  pthread_t thread{};
  sigjmp_buf back{};
  struct sigaction before[2]{};
};

Reading reading;

void on_fault(int number) {
  if (::pthread_equal(::pthread_self(), reading.thread) != 0) {
    ::siglongjmp(reading.back, 1);
  }
  // A fault of another thread: it recurs at once, for the handler that the program installed.
  ::sigaction(number, &reading.before[number == FAULTS[0] ? 0 : 1], nullptr);
}

}  // namespace

void write_python_stacks(int signal) {
  if (signal == 0 || reading.busy.exchange(true)) {
    return;
  }
  reading.thread = ::pthread_self();
  sigset_t needed, before;
  ::sigemptyset(&needed);
  for (const int number : {signal, FAULTS[0], FAULTS[1]}) {
    ::sigaddset(&needed, number);
  }
  ::pthread_sigmask(SIG_UNBLOCK, &needed, &before);
  if (::sigsetjmp(reading.back, 1) == 0) {
    struct sigaction guard{};
    guard.sa_handler = on_fault;
    guard.sa_flags = SA_ONSTACK;  // an overflowed stack has no room for a handler
    ::sigemptyset(&guard.sa_mask);
    for (int i = 0; i < 2; ++i) {
      ::sigaction(FAULTS[i], &guard, &reading.before[i]);
    }
    // Runs on this thread before the call returns, so that no call of the program is interrupted.
    ::pthread_kill(::pthread_self(), signal);
  }
  for (int i = 0; i < 2; ++i) {
    ::sigaction(FAULTS[i], &reading.before[i], nullptr);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  reading.busy = false;
}

}  // namespace lanescope
