// Detects a deadlock while Python's lock is held, by sampling what all threads wait in.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace lanescope {

class Standstill {
 public:
  // Samples all threads. `python_watchdog` waits for Python's lock; threads in the same wait also
  // wait for that lock.
  void look(int64_t now, int64_t python_watchdog);

  // Call when something was recorded, or Python's watchdog got the lock.
  void forget();

  // Returns for how long every thread has been seen waiting for another one, ns.
  int64_t lasted(int64_t now) const;

 private:
  struct Seen {
    std::string call;  // system call with its arguments
    int64_t used = 0;  // processor time, ns
  };
  std::map<int64_t, Seen> threads;
  int64_t since = 0;  // 0: some thread can still continue
  int64_t looked = 0;
};

}  // namespace lanescope
