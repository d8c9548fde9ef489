// Whether a process can never go on that holds Python's lock: by looks at what its threads wait in.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace lanescope {

class Standstill {
 public:
  // Looks at all threads. `python_watchdog` waits for Python's lock; where it waits, others that
  // wait for the lock do as well.
  void look(int64_t now, int64_t python_watchdog);

  // Something was recorded, or Python's watchdog had its lock.
  void forget();

  // For how long, by looks, every thread has been waiting for another one, ns.
  int64_t lasted(int64_t now) const;

 private:
  struct Seen {
    std::string call;  // system call with its arguments
    int64_t used = 0;  // processor time, ns
  };
  std::map<int64_t, Seen> threads;
  int64_t since = 0;  // 0: some thread may go on
  int64_t looked = 0;
};

}  // namespace lanescope
