#include "journal/background_compactor.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>

#include "base/blocked_signals.h"

namespace lanescope {

namespace {

constexpr size_t STACK_BYTES = 256 * 1024;

std::string& command() {
  static std::string& instance = *new std::string;
  return instance;
}

int run_shell(void* text) {
  return ::system(static_cast<const char*>(text));
}

}  // namespace

void set_follower(std::string text) {
  command() = std::move(text);
}

void start_follower() noexcept {
  if (command().empty()) {
    return;
  }
  const int error = errno;
  void* stack = ::mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack != MAP_FAILED) {
    // Until it execs, the child shares this process's memory: no signal handler may run there.
    const BlockedSignals blocked;
    const pid_t child = ::clone(run_shell, static_cast<char*>(stack) + STACK_BYTES,
                                CLONE_VM | CLONE_VFORK, command().data());
    if (child > 0) {
      ::waitpid(child, nullptr, __WALL);
    }
    ::munmap(stack, STACK_BYTES);
  }
  errno = error;
}

}  // namespace lanescope
