// What runs at each call of a module and at each use of a lock, as functions of Python's own kind:
// calling them through ctypes would take longer than all they do. Those of modules handle the usual
// call; modules.py handles any other.

#include <cstdint>

#include "base/recording_state.h"
#include "thread/modules.h"
#include "thread/thread.h"

extern "C" {
// Python's stable ABI, without its headers: the process that loads this library provides them.
extern char _Py_TrueStruct, _Py_FalseStruct;
void Py_IncRef(void* object);
long PyLong_AsLong(void* number);

void lanescope_handover(int32_t kind, int64_t target);
}

namespace lanescope {

namespace {

void* truth(bool is) {
  void* object = is ? &_Py_TrueStruct : &_Py_FalseStruct;
  Py_IncRef(object);
  return object;
}

Thread* calling_thread() {
  Thread* thread = entered_thread();
  return thread != nullptr && thread->shared.busy == 0 ? thread : nullptr;
}

// True if the outputs of modules are checked in this step.
bool outputs_are_read() {
  const int32_t every = recording.outputs_every;
  return every != 0 && recording.step.load(std::memory_order_relaxed) % every == 0;
}

}  // namespace

void enter_module(Thread& thread, Text path) {
  thread.modules.open.push_back(path);
  thread.shared.module = path;
  thread.shared.modules = static_cast<uint32_t>(thread.modules.open.size());
}

Text leave_module(Thread& thread) {
  std::vector<Text>& open = thread.modules.open;
  if (open.empty()) {
    return 0;
  }
  const Text path = open.back();
  open.pop_back();
  thread.shared.module = open.empty() ? 0 : open.back();
  thread.shared.modules = static_cast<uint32_t>(open.size());
  return path;
}

}  // namespace lanescope

using namespace lanescope;

extern "C" {

// Returns True if it entered the module: this takes an outer module, and a path known to this
// thread.
__attribute__((visibility("default"))) void* lanescope_module_entered(void*, void* module) {
  Thread* thread = calling_thread();
  if (thread == nullptr || thread->modules.open.empty()) {
    return truth(false);
  }
  const Text path = thread->modules.paths.find(module);
  if (path == 0) {
    return truth(false);
  }
  try {
    enter_module(*thread, path);
  } catch (...) {
    note_error();
  }
  return truth(true);
}

// Returns True if it left the innermost module: this takes an outer module.
__attribute__((visibility("default"))) void* lanescope_module_left(void*, void*) {
  Thread* thread = calling_thread();
  if (thread == nullptr || thread->modules.open.size() < 2 || outputs_are_read()) {
    return truth(false);
  }
  leave_module(*thread);
  return truth(true);
}

// Called with `kind`, which the function is bound to, and with the lock, its one argument (METH_O),
// whose address identifies it.
__attribute__((visibility("default"))) void* lanescope_handed_over(void* kind, void* lock) {
  lanescope_handover(static_cast<int32_t>(PyLong_AsLong(kind)), reinterpret_cast<intptr_t>(lock));
  Py_IncRef(kind);
  return kind;
}
}
