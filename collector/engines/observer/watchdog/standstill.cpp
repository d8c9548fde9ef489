#include "watchdog/standstill.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/own_file.h"

namespace lanescope {

namespace {

constexpr int64_t BUSY_SHARE = 10;        // a thread that uses a tenth of a core works
constexpr uint64_t CONDITION_BYTES = 64;  // threads that wait in one condition differ by less

// As in collector/watchdog/thread_states.py: threads that never wake one of the program's.
constexpr std::array<std::string_view, 7> BYSTANDERS = {
    "lanescope", "pt_autograd_", "pt_gloo", "pt_nccl", "pt_tcpstore", "cuda-EvtHandlr", "cuda0"};

std::string text_of(int64_t tid, const char* name) {
  const std::string path = "/proc/self/task/" + std::to_string(tid) + "/" + name;
  OwnFile file(path.c_str(), O_RDONLY);
  char text[256];
  const ssize_t bytes = file.read(text, sizeof text);
  return {text, bytes > 0 ? static_cast<size_t>(bytes) : 0};
}

std::vector<int64_t> tasks() {
  std::vector<int64_t> found;
  if (DIR* folder = ::opendir("/proc/self/task")) {
    while (const dirent* entry = ::readdir(folder)) {
      if (const int64_t tid = std::atoll(entry->d_name)) {
        found.push_back(tid);
      }
    }
    ::closedir(folder);
  }
  return found;
}

bool is_bystander(int64_t tid) {
  const std::string name = text_of(tid, "comm");
  for (const std::string_view known : BYSTANDERS) {
    if (name.compare(0, known.size(), known) == 0) {
      return true;
    }
  }
  return false;
}

struct Wait {
  bool futex = false;    // of this process alone
  bool limited = false;  // in time
  uint64_t address = 0;
};

Wait wait_of(const std::string& call) {
  std::istringstream from(call);
  int64_t number = -1;
  std::array<uint64_t, 4> arguments{};
  from >> number >> std::hex;
  for (uint64_t& one : arguments) {
    std::string word;
    from >> word;
    one = std::strtoull(word.c_str(), nullptr, 16);
  }
  const uint64_t command = arguments[1] & static_cast<uint64_t>(FUTEX_CMD_MASK);
  const bool waits = command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET;
  const bool own = (arguments[1] & FUTEX_PRIVATE_FLAG) != 0;
  return {number == SYS_futex && waits && own, arguments[3] != 0, arguments[0]};
}

}  // namespace

void Standstill::look(int64_t now, int64_t python_watchdog) {
  const Wait lock = wait_of(text_of(python_watchdog, "syscall"));
  bool rests =
      lock.futex;  // else the watchdog is starved, and the state of other threads is unknown
  std::map<int64_t, Seen> found;
  for (const int64_t tid : tasks()) {
    if (is_bystander(tid)) {
      continue;
    }
    Seen seen{text_of(tid, "syscall"), std::atoll(text_of(tid, "schedstat").c_str())};
    const Wait wait = wait_of(seen.call);
    const uint64_t apart =
        wait.address > lock.address ? wait.address - lock.address : lock.address - wait.address;
    const bool for_lock = wait.futex && apart < CONDITION_BYTES;
    const auto before = threads.find(tid);
    const bool known = before != threads.end();
    const bool still = known && before->second.call == seen.call;
    const bool idle = known && (seen.used - before->second.used) * BUSY_SHARE < now - looked;
    rests = rests && idle && (for_lock || (wait.futex && !wait.limited && still));
    found.emplace(tid, std::move(seen));
  }
  rests = rests && found.size() == threads.size();
  threads = std::move(found);
  looked = now;
  if (!rests) {
    since = 0;
  } else if (since == 0) {
    since = now;
  }
}

void Standstill::forget() {
  threads.clear();
  since = 0;
}

int64_t Standstill::lasted(int64_t now) const {
  return since == 0 ? 0 : now - since;
}

}  // namespace lanescope
