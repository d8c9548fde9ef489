#include "stacks/frame_hash.h"

#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstring>

namespace lanescope {

namespace {

constexpr int MAX_FRAMES = 24;  // frames that distinguish stacks

using Address = const char*;

// Offsets in bytes. CPython's Include/cpython/pystate.h and Include/internal/pycore_frame.h.
struct Layout {
  int indirect;   // of the pointer in the thread state that leads to the innermost frame,
  int innermost;  // of the frame in what that points to; -1: it points to the frame itself
  int code;       // in a frame,
  int previous;
  int position;  // of the instruction
};

constexpr Layout LAYOUTS[] = {
    {56, 8, 32, 48, 56},  // 3.11
    {56, 0, 0, 8, 56},    // 3.12
    {72, -1, 0, 8, 56},   // 3.13
    {72, -1, 0, 8, 56},   // 3.14
};

Address pointer_at(Address base, int offset) {
  Address value = nullptr;
  std::memcpy(&value, base + offset, sizeof value);
  return value;
}

struct Interpreter {
  void* (*this_thread_state)() = nullptr;
  const char* (*version)() = nullptr;
  void* (*current_frame)() = nullptr;
  void* (*back)(void*) = nullptr;
  void* (*code)(void*) = nullptr;
  void (*increase)(void*) = nullptr;
  void (*decrease)(void*) = nullptr;

  Interpreter() {
    find(this_thread_state, "PyGILState_GetThisThreadState");
    find(version, "Py_GetVersion");
    find(current_frame, "PyEval_GetFrame");
    find(back, "PyFrame_GetBack");
    find(code, "PyFrame_GetCode");
    find(increase, "Py_IncRef");
    find(decrease, "Py_DecRef");
  }
  template <typename Function>
  static void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
  }
};

void* (*this_thread_state)() = nullptr;
const Layout* layout_found = nullptr;
std::atomic<uint64_t> generation{0};  // of hashes

Address innermost(const Layout& layout, Address state) {
  const Address first = pointer_at(state, layout.indirect);
  return layout.innermost < 0 || first == nullptr ? first : pointer_at(first, layout.innermost);
}

// Returns the layout of the running version; null if unknown.
const Layout* of_version(const char* version) {
  for (int minor = 11; minor <= 14; ++minor) {
    const char name[] = {'3', '.', '1', static_cast<char>('0' + minor - 10), '.', '\0'};
    if (std::strncmp(version, name, sizeof name - 1) == 0) {
      return &LAYOUTS[minor - 11];
    }
  }
  return nullptr;
}

// True if every frame that Python reports is found in the same order.
bool fits(const Interpreter& py, const Layout& layout, Address state) {
  Address raw = innermost(layout, state);
  void* frame = py.current_frame();
  int compared = 0;
  if (frame != nullptr) {
    py.increase(frame);
  }
  while (frame != nullptr) {
    void* code = py.code(frame);
    py.decrease(code);
    // Between two Python frames there may be an internal one.
    for (int skipped = 0; raw != nullptr && skipped < 2; ++skipped) {
      if (pointer_at(raw, layout.code) == code) {
        break;
      }
      raw = pointer_at(raw, layout.previous);
    }
    const bool same = raw != nullptr && pointer_at(raw, layout.code) == code;
    void* outer = same ? py.back(frame) : nullptr;
    py.decrease(frame);
    if (!same) {
      return false;
    }
    raw = pointer_at(raw, layout.previous);
    frame = outer;
    ++compared;
  }
  return compared > 1;
}

}  // namespace

bool find_raw_frames() {
  const Interpreter py;
  layout_found = nullptr;
  if (!py.this_thread_state || !py.version || !py.current_frame || !py.back || !py.code ||
      !py.increase || !py.decrease) {
    return false;
  }
  const auto state = static_cast<Address>(py.this_thread_state());
  const Layout* layout = of_version(py.version());
  if (state == nullptr || layout == nullptr || !fits(py, *layout, state)) {
    return false;
  }
  this_thread_state = py.this_thread_state;
  layout_found = layout;
  return true;
}

uint64_t raw_stack() {
  const Layout* layout = layout_found;
  if (layout == nullptr) {
    return 0;
  }
  const auto state = static_cast<Address>(this_thread_state());
  if (state == nullptr) {
    return 0;
  }
  Address frame = innermost(*layout, state);
  uint64_t hash = frame != nullptr ? generation.load(std::memory_order_relaxed) : 0;
  for (int depth = 0; frame != nullptr && depth < MAX_FRAMES; ++depth) {
    const auto code = reinterpret_cast<uint64_t>(pointer_at(frame, layout->code));
    const auto position = reinterpret_cast<uint64_t>(pointer_at(frame, layout->position));
    hash = (hash ^ code) * 0x9E3779B97F4A7C15ULL;
    hash = (hash ^ hash >> 32 ^ position) * 0xBF58476D1CE4E5B9ULL;
    frame = pointer_at(frame, layout->previous);
  }
  return hash;
}

void forget_raw_stacks() {
  generation.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace lanescope
