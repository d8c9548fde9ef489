// Acquires and releases of the program's locks. Most are free, which has to cost next to nothing.

#pragma once

#include "slots.h"

namespace trampolines {

struct Lock {  // a type of locks: the calls to locks.py, and the type's own methods
  Object *programs, *held, *becomes, *taken, *given, *waits, *waited;
  const Slot *acquire, *release;
};

// Whether the lock is the program's. An exception may be set afterwards.
inline bool is_programs(const Lock& lock, Object* self, Object* number) {
  if (PySet_Contains(lock.programs, number) == 1) {
    return true;
  }
  Held becomes = call_hook(lock.becomes, self);
  if (!becomes) {
    hold();
  }
  return becomes.get() == &_Py_TrueStruct;
}

// Gives a lock back that the caller will take for one that was not acquired. Keeps the exception.
inline Object* given_back(const Lock& lock, Object* self) {
  Error error;
  Held released(reinterpret_cast<Function>(lock.release->original)(self, nullptr));
  if (!released) {
    PyErr_Clear();
  }
  error.restore();
  return nullptr;
}

// The calling thread has the lock now, which was free. False: an exception is set.
inline bool taken(const Lock& lock, Object* self, Object* number) {
  if (lock.held != none) {
    Held own(PyLong_FromUnsignedLong(PyThread_get_thread_ident()));
    PyDict_SetItem(lock.held, number, own.get());
  }
  return call_hook(lock.taken, self) || hold();
}

// It is about to give it back. An exception may be set afterwards.
inline void gives(const Lock& lock, Object* self, Object* number) {
  if (lock.held != none && PyDict_DelItem(lock.held, number) != 0) {
    PyErr_Clear();
  }
  if (!call_hook(lock.given, self)) {
    hold();
  }
}

// Takes a lock. It is tried first: most are free, and then nothing has to be noted but that.
template <typename Original>
Object* acquire(const Lock& lock, Object* self, const Call& call, Original original) {
  const bool noted = concurrent;
  const Held number(noted ? PyLong_FromVoidPtr(self) : nullptr);
  if (noted && !is_programs(lock, self, number.get())) {
    return PyErr_Occurred() != nullptr ? nullptr : original(nullptr);
  }
  if (call.names == nullptr &&
      (call.count == 0 || (call.count == 1 && call.arguments[0] == &_Py_TrueStruct))) {
    Object* at_once = &_Py_FalseStruct;
    Held got(call_method(*lock.acquire, self, nullptr, {&at_once, 1, nullptr}));
    if (!got) {
      return nullptr;
    }
    if (got.get() == &_Py_TrueStruct) {
      if (!noted || taken(lock, self, number.get())) {
        return got.release();
      }
      return given_back(lock, self);
    }
  } else if (!noted) {
    return original(nullptr);
  }
  Held token = call_hook(lock.waits, self);
  if (!token && !hold()) {
    return nullptr;
  }
  Held result(original(nullptr));
  if (!token) {
    return result.release();
  }
  if (result) {
    if (call_hook(lock.waited, self, token.get(), result.get()) || hold()) {
      return result.release();
    }
    return result.get() == &_Py_TrueStruct ? given_back(lock, self) : nullptr;
  }
  Error error;
  if (call_hook(lock.waited, self, token.get(), none) || hold()) {
    error.restore();
  }
  return nullptr;
}

// Gives it back, whatever a signal's handler raises before.
template <typename Original>
Object* release(const Lock& lock, Object* self, Original original) {
  if (concurrent) {
    const Held number(PyLong_FromVoidPtr(self));
    if (is_programs(lock, self, number.get())) {
      gives(lock, self, number.get());
    }
  }
  if (PyErr_Occurred() == nullptr) {
    return original(nullptr);
  }
  Error error;
  Held result(original(nullptr));
  if (!result) {
    PyErr_Clear();
  }
  error.restore();
  return nullptr;
}

}  // namespace trampolines
