// Hooks functions written in Python: by their vectorcall, and where Python runs past it by their
// code.

#include <cstring>
#include <unordered_map>

#include "vectorcall_type.h"

namespace trampolines {

namespace {

const bool is_3_11 = std::strncmp(Py_GetVersion(), "3.11.", 5) == 0;

struct Hooked {
  const Hook* hook;  // nullptr: nothing
  Vectorcall original;
  Object* inner;  // where the code is exchanged: the same function with its own
  Object* outer;  // and the code that it has instead
};

std::unordered_map<Object*, Hooked> functions;
std::unordered_map<Object*, Object*> own_codes;  // by what it was exchanged for

Vectorcall& vectorcall_of(Object* function) {
  return *reinterpret_cast<Vectorcall*>(reinterpret_cast<char*>(function) +
                                        PyFunction_Type.vectorcall_offset);
}

Object* run_function(const Hooked& found, Object* called, Object* const* given, size_t count,
                     Object* names) {
  const Hook* hook = found.hook;
  const Vectorcall original = found.original;  // the table may grow meanwhile
  return within(*hook, {given, count & ~OFFSET, names}, [&](Object* token) {
    if (token == nullptr) {
      return original(called, given, count, names);
    }
    const Brought brought(token);
    const Call other = brought.call();
    return original(called, other.arguments, other.count, other.names);
  });
}

Object* enter_function(Object* function, Object* const* given, size_t count, Object* names) {
  const auto at = functions.find(function);
  const Hooked found = at->second;
  Object* called = function;
  if (found.inner != nullptr && PyFunction_GetCode(function) == found.outer) {
    called = found.inner;
    if (PyFunction_GetDefaults(called) != PyFunction_GetDefaults(function)) {
      Object* defaults = PyFunction_GetDefaults(function);
      PyFunction_SetDefaults(called, defaults != nullptr ? defaults : none);
    }
  } else if (found.inner != nullptr) {
    return found.original(function, given, count, names);  // others gave it a code of theirs
  }
  if (found.hook == nullptr) {
    return found.original(called, given, count, names);
  }
  return run_function(found, called, given, count, names);
}

// Python 3.11 runs a function past its vectorcall, newer ones an `__init__`. There its code is
// exchanged for one that calls an object of this type with the function's arguments. That code has
// no RESUME, so its frame counts as not begun: no traceback, no walk and no line event shows it.
struct Inner {
  Object base;
  Vectorcall vectorcall;
  Object* function;  // whose hook it is
};

constexpr int RETURN = 3;

// A thread's profile or trace function, put off until that code has returned: Python 3.11 calls it
// for the return all the same.
struct Deferred {
  using Tracer = int (*)(Object*, Frame*, int, Object*);
  Tracer tracer;
  int returns;

  void put_off(Tracer& current, Tracer instead) {
    if (current == nullptr) {
      return;
    }
    if (current != instead) {
      tracer = std::exchange(current, instead);
      returns = 0;
    }
    ++returns;
  }
  int pass_on(Tracer& current, Object* object, Frame* frame, int what, Object* argument) {
    Held code(PyFrame_GetCode(frame));
    if (own_codes.count(code.get()) == 0) {
      return tracer(object, frame, what, argument);
    }
    if (what == RETURN && --returns == 0) {
      current = tracer;
    }
    return 0;
  }
};

thread_local Deferred profiling{}, tracing{};

int profile_later(Object* object, Frame* frame, int what, Object* argument) {
  return profiling.pass_on(PyThreadState_Get()->profile, object, frame, what, argument);
}

int trace_later(Object* object, Frame* frame, int what, Object* argument) {
  return tracing.pass_on(PyThreadState_Get()->trace, object, frame, what, argument);
}

Object* enter_inlined(Object* self, Object* const* given, size_t count, Object* names) {
  const Hooked found = functions.find(reinterpret_cast<Inner*>(self)->function)->second;
  const auto run = [&] {
    return found.hook == nullptr ? found.original(found.inner, given, count, names)
                                 : run_function(found, found.inner, given, count, names);
  };
  if (!is_3_11) {
    return run();
  }
  Thread* thread = PyThreadState_Get();
  ++thread->recursion_remaining;  // of that code's frame
  Object* result = run();
  --thread->recursion_remaining;
  profiling.put_off(thread->profile, profile_later);
  tracing.put_off(thread->trace, trace_later);
  return result;
}

void free_inner(Object* self) {
  Type* type = self->type;
  PyObject_Free(self);
  Py_DecRef(&type->base);
}

Object* (*own_code)(Object*, void*) = nullptr;

// `__code__` of functions, where it was exchanged.
Object* enter_code(Object* function, void* closure) {
  Object* code = own_code(function, closure);
  const auto at = code != nullptr ? own_codes.find(code) : own_codes.end();
  if (at == own_codes.end()) {
    return code;
  }
  Py_DecRef(code);
  return kept(at->second);
}

}  // namespace

// Hooks a function written in Python. `inner`: another with its code, where that is exchanged.
EXPORT void trampolines_function(Object* function, const Hook* hook, Object* inner) {
  const auto [at, is_new] = functions.try_emplace(function);
  Hooked& found = at->second;
  if (is_new) {
    Py_IncRef(function);
    found.original = vectorcall_of(function);
  }
  found.hook = hook;
  if (inner != nullptr) {
    found.inner = kept(inner);
  }
  const Vectorcall entry = hook != nullptr ? enter_function : found.original;
  if (PyFunction_SetVectorcall != nullptr) {
    PyFunction_SetVectorcall(function, entry);
  } else {
    vectorcall_of(function) = entry;
  }
}

// The object that the exchanged code of `function` calls.
EXPORT Object* trampolines_inner(Object* function) {
  static Type* const type = vectorcall_type("lanescope.Inner", sizeof(Inner), free_inner);
  Inner* made = reinterpret_cast<Inner*>(PyType_GenericAlloc(type, 0));
  made->vectorcall = enter_inlined;
  made->function = kept(function);
  return &made->base;
}

// And `outer` is the code that it has instead of `own`.
EXPORT void trampolines_exchanged(Object* function, Object* outer, Object* own,
                                  Object* descriptor) {
  functions[function].outer = kept(outer);
  own_codes[kept(outer)] = kept(own);
  GetSetDef* definition =
      static_cast<GetSetDef*>(reinterpret_cast<Descriptor*>(descriptor)->definition);
  if (definition->get != enter_code) {
    own_code = std::exchange(definition->get, enter_code);
  }
}

// No function has another code than its own.
EXPORT void trampolines_all_own(Object* descriptor) {
  GetSetDef* definition =
      static_cast<GetSetDef*>(reinterpret_cast<Descriptor*>(descriptor)->definition);
  if (definition->get == enter_code) {
    definition->get = own_code;
  }
}

// Whether a function still has the code that it was given; what `__code__` says is its own.
EXPORT int32_t trampolines_has_outer(Object* function) {
  const auto at = functions.find(function);
  return at != functions.end() && PyFunction_GetCode(function) == at->second.outer ? 1 : 0;
}

}  // namespace trampolines
