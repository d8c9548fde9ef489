// What runs around a hooked call: a hook has up to three callables. `begin` runs before the call
// and returns a token, `done` gets token and result, `raised` token and exception. None of them
// adds a frame to the call, and what they raise does not reach the program.

#pragma once

#include <utility>
#include <vector>

#include "python.h"

namespace trampolines {

enum Flag { SELF_ALONE = 1, CONCURRENT = 2 };  // as in trampolines.py

constexpr size_t OFFSET = size_t{1} << (8 * sizeof(size_t) - 1);

inline Object* const none = &_Py_NoneStruct;
inline Object* failed = nullptr;  // gets what a hook raised; raises it again if it is the program's
inline Type* changed = nullptr;   // of a token that brings other arguments
inline void* home = nullptr;      // the interpreter that is recorded
inline bool concurrent = false;   // whether there is a second thread

// A reference that ends with its block.
class Held {
 public:
  explicit Held(Object* object) : object_(object) {}
  Held(const Held&) = delete;
  Held(Held&& other) noexcept : object_(other.release()) {}
  Held& operator=(Held&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Held() {
    if (object_ != nullptr) {
      Py_DecRef(object_);
    }
  }
  Object* get() const { return object_; }
  Object* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  Object* object_;
};

inline Object* kept(Object* object) {
  Py_IncRef(object);
  return object;
}

// The values behind `given`, by their names.
inline Object* named_values(Object* names, Object* const* given) {
  Held named(names != nullptr ? PyDict_New() : nullptr);
  for (Size i = 0; named && i < PyTuple_Size(names); ++i) {
    PyDict_SetItem(named.get(), PyTuple_GetItem(names, i), given[i]);
  }
  return named.release();
}

inline Object* call_object(Object* callable, Object* const* given, size_t count, Object* names) {
  if (PyObject_Vectorcall != nullptr) {
    return PyObject_Vectorcall(callable, given, count, names);
  }
  const Held named(named_values(names, given + (count & ~OFFSET)));
  return PyObject_VectorcallDict(callable, given, count, named.get());
}

// The exception that is set, taken off for a while.
class Error {
 public:
  Error() {
    PyErr_Fetch(&kind_, &value_, &trace_);
    PyErr_NormalizeException(&kind_, &value_, &trace_);
    if (trace_ != nullptr) {
      PyException_SetTraceback(value_, trace_);
    }
  }
  Error(const Error&) = delete;
  ~Error() {
    for (Object* one : {kind_, value_, trace_}) {
      if (one != nullptr) {
        Py_DecRef(one);
      }
    }
  }
  Object* value() const { return value_; }
  void restore() {
    PyErr_Restore(std::exchange(kind_, nullptr), std::exchange(value_, nullptr),
                  std::exchange(trace_, nullptr));
  }

 private:
  Object *kind_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

// Around the recorder's own code: a program that traces its own does not see it.
class Untraced {
 public:
  Untraced() : thread_(PyThreadState_EnterTracing != nullptr ? PyThreadState_Get() : nullptr) {
    if (thread_ != nullptr) {
      PyThreadState_EnterTracing(thread_);
    }
  }
  ~Untraced() {
    if (thread_ != nullptr) {
      PyThreadState_LeaveTracing(thread_);
    }
  }

 private:
  Thread* thread_;
};

// Calls the recorder. nullptr: it raised; then `hold` says whether the program goes on.
template <typename... Arguments>
Held call_hook(Object* callable, Arguments... arguments) {
  Object* given[] = {nullptr, arguments...};
  Untraced untraced;
  return Held(call_object(callable, given + 1, sizeof...(arguments) | OFFSET, nullptr));
}

// Whether what the recorder raised is kept from the program. Else it is set again: it is what a
// signal's handler of the program raised meanwhile.
inline bool hold() {
  if (PyErr_ExceptionMatches(PyExc_RecursionError) != 0) {
    PyErr_Clear();  // the program is at its limit, and will find that out by itself
    return true;
  }
  Error error;
  if (failed == nullptr) {
    return true;
  }
  return static_cast<bool>(call_hook(failed, error.value()));
}

struct Hook {
  Object *begin, *done, *raised;
  int flags;
};

// The arguments of a call, with those of the recorder's if it changed them.
struct Call {
  Object* const* arguments;
  size_t count;
  Object* names;
};

inline bool missing(Object* object) {
  return object == nullptr || object == none;
}

inline Held begun(const Hook& hook, const Call& call) {
  Untraced untraced;
  const bool alone = (hook.flags & SELF_ALONE) != 0;
  return Held(call_object(hook.begin, call.arguments, alone && call.count != 0 ? 1 : call.count,
                          alone ? nullptr : call.names));
}

// Runs `original` within a hook: with nullptr, or with what to call it with instead.
template <typename Original>
Object* within(const Hook& hook, const Call& call, Original original) {
  if ((hook.flags & CONCURRENT) != 0 && !concurrent) {
    return original(nullptr);
  }
  Held token(nullptr);
  if (!missing(hook.begin)) {
    token = begun(hook, call);
    if (!token && (PyErr_ExceptionMatches(PyExc_TypeError) != 0 ||
                   PyErr_ExceptionMatches(PyExc_AttributeError) != 0 ||
                   PyErr_ExceptionMatches(PyExc_LookupError) != 0)) {
      // Perhaps the program called with arguments that do not fit.
      Error error;
      Held result(original(nullptr));
      if (result) {
        error.restore();
        if (!hold()) {
          return nullptr;
        }
      }
      return result.release();
    }
    if (!token && !hold()) {
      return nullptr;
    }
    if (!token || token.get() == none) {
      return original(nullptr);
    }
  } else {
    token = Held(kept(none));
  }
  const bool changes = token.get()->type == changed;
  Object* own = changes ? PyTuple_GetItem(token.get(), 0) : token.get();
  Held result(original(changes ? token.get() : nullptr));
  if (result) {
    if (!missing(hook.done) && !call_hook(hook.done, own, result.get()) && !hold()) {
      return nullptr;
    }
    return result.release();
  }
  if (!missing(hook.raised)) {
    Error error;
    if (!call_hook(hook.raised, own, error.value()) && !hold()) {
      return nullptr;
    }
    error.restore();
  }
  return nullptr;
}

// The arguments that a token brings: a tuple and a dictionary or None, as an array.
class Brought {
 public:
  explicit Brought(Object* token) : names_(nullptr) {
    Object *given = PyTuple_GetItem(token, 1), *named = PyTuple_GetItem(token, 2);
    for (Size i = 0; i < PyTuple_Size(given); ++i) {
      all_.push_back(PyTuple_GetItem(given, i));
    }
    count_ = all_.size();
    if (named != none) {
      add(named);
    }
  }
  // Of METH_VARARGS.
  Brought(Object* self, Object* given, Object* named) : names_(nullptr) {
    if (self != nullptr) {
      all_.push_back(self);
    }
    for (Size i = 0; i < PyTuple_Size(given); ++i) {
      all_.push_back(PyTuple_GetItem(given, i));
    }
    count_ = all_.size();
    if (named != nullptr) {
      add(named);
    }
  }
  Call call() const { return {all_.data(), count_, names_.get()}; }

 private:
  void add(Object* named) {
    names_ = Held(PyTuple_New(PyDict_Size(named)));
    Object *name, *value;
    for (Size at = 0, i = 0; PyDict_Next(named, &at, &name, &value) != 0; ++i) {
      PyTuple_SetItem(names_.get(), i, kept(name));
      all_.push_back(value);
    }
  }
  std::vector<Object*> all_;
  size_t count_ = 0;
  Held names_;
};

}  // namespace trampolines
