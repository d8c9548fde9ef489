// Interns the texts of the process: one id space for Python and C++, readable after a crash.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/own_file.h"

namespace lanescope {

using Text = uint32_t;  // 0 is the empty text

class Texts {
 public:
  // Returns the text's id, that of LEFT_OUT if there are too many, 0 if it could not be stored. If
  // attached, the text is on disk when this returns.
  Text intern(std::string_view text);

  // The same for shapes, dtypes and device, which have their own bound. `exact` is false if the id
  // is that of LEFT_OUT.
  Text intern_signature(std::string_view text, bool& exact);

  // Stores all texts, also earlier ones, in `folder` from now on: ids that threads and Python
  // remember stay valid in a forked child and in the next recording. Returns an errno, or 0.
  int attach(const std::string& folder);

  // Forgets the folder, keeps the ids.
  void detach();

  // Call in a forked child with the mutex held: leaves the parent's file as it is.
  void abandon();

  int failure() const { return failure_.load(std::memory_order_relaxed); }

  uint64_t texts_left_out() const { return texts_left_out_.load(std::memory_order_relaxed); }
  uint64_t signatures_left_out() const {
    return signatures_left_out_.load(std::memory_order_relaxed);
  }

  // Held over a fork, so that the child's copy is whole and its lock free.
  std::mutex mutex;

 private:
  // Guarded by the mutex.
  bool store(std::string_view text);
  bool grow(uint64_t bytes);
  Text known(const std::string& text) const;
  Text add(std::string text);

  std::unordered_map<std::string, Text> ids_;
  std::vector<const std::string*> order_;
  uint64_t bytes_ = 0;  // of all texts
  uint64_t signatures_ = 0;
  std::string path_;
  FileIdentity file_;
  char* memory_ = nullptr;  // null: not attached
  uint64_t used_ = 0, size_ = 0;
  std::atomic<uint64_t> texts_left_out_{0}, signatures_left_out_{0};
  std::atomic<int> failure_{0};
};

Texts& texts();

}  // namespace lanescope
