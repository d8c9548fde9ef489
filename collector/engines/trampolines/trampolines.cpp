// Hooks functions where they are: the objects that a program knows stay as they are, and what runs
// first when they are called is in here. A hook has up to three callables: `begin` runs before the
// call and returns a token, `done` gets token and result, `raised` token and exception. None of
// them adds a frame to the call, and what they raise does not reach the program.
//
// Needs no headers of Python: the structures below are the same in 3.10 to 3.14, on 64 bits and
// with the interpreter's lock. collector/hooks/trampolines.py loads this library.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

using Size = intptr_t;
struct Object;
using Vectorcall = Object* (*)(Object*, Object* const*, size_t, Object*);
using Function = Object* (*)(Object*, Object*);

struct Object {
  int64_t references;
  struct Type* type;
};

struct Type {  // PyTypeObject; three members are used
  Object base;
  Size size;
  void* until_vectorcall_offset[4];
  Size vectorcall_offset;
  void* until_new[31];
  Object* (*make)(Type*, Object*, Object*);
};
static_assert(offsetof(Type, vectorcall_offset) == 56 && offsetof(Type, make) == 312);

struct MethodDef {
  const char* name;
  void* function;
  int flags;
  const char* doc;
};

struct Builtin {  // PyCFunctionObject
  Object base;
  MethodDef* method;
};

struct Descriptor {  // PyMethodDescrObject, PyGetSetDescrObject
  Object base;
  Type* type;
  Object *name, *qualname;
  void* definition;
};

struct GetSetDef {
  const char* name;
  Object* (*get)(Object*, void*);
  int (*set)(Object*, Object*, void*);
  const char* doc;
  void* closure;
};

struct Thread {  // PyThreadState of Python 3.11; its start is used
  void *previous, *next, *interpreter;
  int initialized, is_static, recursion_remaining, recursion_limit, recursion_headroom, tracing,
      what;
  void* cframe;
  int (*profile)(Object*, struct Frame*, int, Object*);
  int (*trace)(Object*, struct Frame*, int, Object*);
};

extern "C" {
extern Object _Py_NoneStruct, _Py_TrueStruct, _Py_FalseStruct;
extern Object *PyExc_SystemExit, *PyExc_RecursionError, *PyExc_TypeError, *PyExc_LookupError,
    *PyExc_AttributeError;
extern Type PyType_Type, PyMethodDescr_Type, PyFunction_Type, PyGetSetDescr_Type;
void Py_IncRef(Object*);
void Py_DecRef(Object*);
Object* PyObject_Call(Object*, Object*, Object*);
Object* PyVectorcall_Call(Object*, Object*, Object*);
void PyObject_Free(void*);
int PyType_IsSubtype(Type*, Type*);
Object* PyTuple_New(Size);
Size PyTuple_Size(Object*);
Object* PyTuple_GetItem(Object*, Size);
int PyTuple_SetItem(Object*, Size, Object*);
Object* PyDict_New();
Size PyDict_Size(Object*);
int PyDict_Next(Object*, Size*, Object**, Object**);
int PyDict_SetItem(Object*, Object*, Object*);
int PySet_Contains(Object*, Object*);
Object* PyLong_FromVoidPtr(void*);
Object* PyLong_FromUnsignedLong(unsigned long);
unsigned long PyThread_get_thread_ident();
int PyDict_DelItem(Object*, Object*);
void PyErr_Clear();
Object* PyErr_Occurred();
void PyErr_Fetch(Object**, Object**, Object**);
void PyErr_NormalizeException(Object**, Object**, Object**);
void PyErr_Restore(Object*, Object*, Object*);
int PyErr_ExceptionMatches(Object*);
int PyException_SetTraceback(Object*, Object*);
Object* PyFunction_GetCode(Object*);
Object* PyFunction_GetDefaults(Object*);
int PyFunction_SetDefaults(Object*, Object*);
Object* PyFrame_GetCode(Frame*);
Thread* PyThreadState_Get();
void* PyInterpreterState_Get();
const char* Py_GetVersion();
Object* PyObject_VectorcallDict(Object*, Object* const*, size_t, Object*);
// Not in every version.
__attribute__((weak)) Object* PyObject_Vectorcall(Object*, Object* const*, size_t, Object*);
__attribute__((weak)) void PyFunction_SetVectorcall(Object*, Vectorcall);
__attribute__((weak)) void PyThreadState_EnterTracing(Thread*);
__attribute__((weak)) void PyThreadState_LeaveTracing(Thread*);
__attribute__((weak)) void _PyErr_WriteUnraisableMsg(const char*, Object*);
__attribute__((weak)) void PyErr_FormatUnraisable(const char*, ...);
Object* PyType_FromSpec(void*);
Object* PyType_GenericAlloc(Type*, Size);
}

namespace {

enum Convention { VARARGS = 1, KEYWORDS = 2, NOARGS = 4, ONE = 8, FASTCALL = 128, METHOD = 512 };
constexpr int CONVENTIONS = VARARGS | KEYWORDS | NOARGS | ONE | FASTCALL | METHOD;

enum Flag { SELF_ALONE = 1, CONCURRENT = 2 };  // as in trampolines.py

constexpr size_t OFFSET = size_t{1} << (8 * sizeof(size_t) - 1);

Object* const none = &_Py_NoneStruct;
Object* failed = nullptr;  // gets what a hook raised; raises it again if it is the program's
Type* changed = nullptr;   // of a token that brings other arguments
void* home = nullptr;      // the interpreter that is recorded
bool concurrent = false;   // whether there is a second thread
const bool is_3_11 = std::strncmp(Py_GetVersion(), "3.11.", 5) == 0;

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

Object* kept(Object* object) {
  Py_IncRef(object);
  return object;
}

// The values behind `given`, by their names.
Object* named_values(Object* names, Object* const* given) {
  Held named(names != nullptr ? PyDict_New() : nullptr);
  for (Size i = 0; named && i < PyTuple_Size(names); ++i) {
    PyDict_SetItem(named.get(), PyTuple_GetItem(names, i), given[i]);
  }
  return named.release();
}

Object* call_object(Object* callable, Object* const* given, size_t count, Object* names) {
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
bool hold() {
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

bool missing(Object* object) {
  return object == nullptr || object == none;
}

Held begun(const Hook& hook, const Call& call) {
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

// Functions and methods written in C -------------------------------------------------------------

struct Slot;

struct Lock {  // a type of locks: the calls to locks.py, and the type's own methods
  Object *programs, *held, *becomes, *taken, *given, *waits, *waited;
  const Slot *acquire, *release;
};

struct Slot {
  MethodDef* definition;
  void* original;
  bool has_self;     // the first argument is the object whose method it is
  const Hook* hook;  // nullptr, and no lock: nothing, the call goes through
  const Lock* lock;
  bool releases;
};

constexpr size_t SLOTS = 128;
Slot slots[SLOTS];

// Calls the method itself.
Object* call_method(const Slot& slot, Object* self, Object* owner, const Call& call) {
  const size_t count = call.count;
  Object* const* given = call.arguments;
  const int flags = slot.definition->flags & CONVENTIONS;
  void* function = slot.original;
  if (flags == NOARGS || flags == ONE) {
    return reinterpret_cast<Function>(function)(self, count != 0 ? given[0] : nullptr);
  }
  if (flags == FASTCALL) {
    return reinterpret_cast<Object* (*)(Object*, Object* const*, Size)>(function)(
        self, given, static_cast<Size>(count));
  }
  if (flags == (FASTCALL | KEYWORDS)) {
    return reinterpret_cast<Object* (*)(Object*, Object* const*, Size, Object*)>(function)(
        self, given, static_cast<Size>(count), call.names);
  }
  if (flags == (METHOD | FASTCALL | KEYWORDS)) {
    return reinterpret_cast<Object* (*)(Object*, Object*, Object* const*, Size, Object*)>(function)(
        self, owner, given, static_cast<Size>(count), call.names);
  }
  Held tuple(PyTuple_New(static_cast<Size>(count)));
  for (size_t i = 0; i < count; ++i) {
    PyTuple_SetItem(tuple.get(), static_cast<Size>(i), kept(given[i]));
  }
  if (flags == VARARGS) {
    return reinterpret_cast<Function>(function)(self, tuple.get());
  }
  const Held named(named_values(call.names, given + count));
  return reinterpret_cast<Object* (*)(Object*, Object*, Object*)>(function)(self, tuple.get(),
                                                                            named.get());
}

// Whether the lock is the program's. An exception may be set afterwards.
bool is_programs(const Lock& lock, Object* self, Object* number) {
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
Object* given_back(const Lock& lock, Object* self) {
  Error error;
  Held released(reinterpret_cast<Function>(lock.release->original)(self, nullptr));
  if (!released) {
    PyErr_Clear();
  }
  error.restore();
  return nullptr;
}

// The calling thread has the lock now, which was free. False: an exception is set.
bool taken(const Lock& lock, Object* self, Object* number) {
  if (lock.held != none) {
    Held own(PyLong_FromUnsignedLong(PyThread_get_thread_ident()));
    PyDict_SetItem(lock.held, number, own.get());
  }
  return call_hook(lock.taken, self) || hold();
}

// It is about to give it back. An exception may be set afterwards.
void gives(const Lock& lock, Object* self, Object* number) {
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
  if (!concurrent) {
    return original(nullptr);
  }
  const Held number(PyLong_FromVoidPtr(self));
  if (!is_programs(lock, self, number.get())) {
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
      return taken(lock, self, number.get()) ? got.release() : given_back(lock, self);
    }
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

template <typename Original>
Object* hooked(const Slot& slot, Object* self, Object* owner, const Call& call, Original original) {
  if (slot.lock != nullptr) {
    const Call own{call.arguments + 1, call.count - 1, call.names};
    return slot.releases ? release(*slot.lock, self, original)
                         : acquire(*slot.lock, self, own, original);
  }
  return within(*slot.hook, call, [&](Object* token) {
    if (token == nullptr) {
      return original(nullptr);
    }
    Brought brought(token);
    Call other = brought.call();
    if (slot.has_self) {
      other = {other.arguments + 1, other.count - 1, other.names};
    }
    return call_method(slot, self, owner, other);
  });
}

// Definitions are shared with other interpreters of the process, which have objects of their own.
bool is_silent(const Slot& slot) {
  return (slot.hook == nullptr && slot.lock == nullptr) || PyInterpreterState_Get() != home;
}

// What stands in the definitions, one for each slot and way of calling.
[[gnu::noinline]] Object* enter_two(const Slot& slot, Object* self, Object* given) {
  const auto original = [&](Object*) {
    return reinterpret_cast<Function>(slot.original)(self, given);
  };
  if (is_silent(slot)) {
    return original(nullptr);
  }
  if (slot.lock != nullptr && slot.releases) {
    return hooked(slot, self, nullptr, {&self, 1, nullptr}, original);
  }
  if ((slot.definition->flags & VARARGS) != 0) {
    const Brought all(slot.has_self ? self : nullptr, given, nullptr);
    return hooked(slot, self, nullptr, all.call(), original);
  }
  Object* all[] = {self, given};
  const size_t from = slot.has_self ? 0 : 1;
  const size_t count = 1 - from + ((slot.definition->flags & ONE) != 0 ? 1 : 0);
  return hooked(slot, self, nullptr, {all + from, count, nullptr}, original);
}

[[gnu::noinline]] Object* enter_three(const Slot& slot, Object* self, Object* given,
                                      Object* named) {
  const auto original = [&](Object*) {
    return reinterpret_cast<Object* (*)(Object*, Object*, Object*)>(slot.original)(self, given,
                                                                                   named);
  };
  if (is_silent(slot)) {
    return original(nullptr);
  }
  if (slot.lock != nullptr && PyTuple_Size(given) == 0 && named == nullptr) {
    return hooked(slot, self, nullptr, {&self, 1, nullptr}, original);
  }
  const Brought all(slot.has_self ? self : nullptr, given, named);
  return hooked(slot, self, nullptr, all.call(), original);
}

[[gnu::noinline]] Object* enter_array(const Slot& slot, Object* self, Object* owner,
                                      const Call& call) {
  const auto original = [&](Object*) { return call_method(slot, self, owner, call); };
  if (is_silent(slot)) {
    return original(nullptr);
  }
  if (!slot.has_self) {
    return hooked(slot, self, owner, call, original);
  }
  const size_t named = call.names != nullptr ? static_cast<size_t>(PyTuple_Size(call.names)) : 0;
  Object* few[8];
  std::vector<Object*> many;
  Object** all = few;
  if (call.count + named + 1 > 8) {
    many.resize(call.count + named + 1);
    all = many.data();
  }
  all[0] = self;
  for (size_t i = 0; i < call.count + named; ++i) {
    all[i + 1] = call.arguments[i];
  }
  return hooked(slot, self, owner, {all, call.count + 1, call.names}, original);
}

template <size_t N>
struct Entry {
  static Object* two(Object* self, Object* given) { return enter_two(slots[N], self, given); }
  static Object* three(Object* self, Object* given, Object* named) {
    return enter_three(slots[N], self, given, named);
  }
  static Object* array(Object* self, Object* const* given, Size count) {
    return enter_array(slots[N], self, nullptr, {given, static_cast<size_t>(count), nullptr});
  }
  static Object* array_names(Object* self, Object* const* given, Size count, Object* names) {
    return enter_array(slots[N], self, nullptr, {given, static_cast<size_t>(count), names});
  }
  static Object* method(Object* self, Object* owner, Object* const* given, Size count,
                        Object* names) {
    return enter_array(slots[N], self, owner, {given, static_cast<size_t>(count), names});
  }
};

struct Entries {
  Function two;
  Object* (*three)(Object*, Object*, Object*);
  Object* (*array)(Object*, Object* const*, Size);
  Object* (*array_names)(Object*, Object* const*, Size, Object*);
  Object* (*method)(Object*, Object*, Object* const*, Size, Object*);
};

template <size_t... N>
const Entries& entries_of(size_t at, std::index_sequence<N...>) {
  static constexpr Entries all[] = {{&Entry<N>::two, &Entry<N>::three, &Entry<N>::array,
                                     &Entry<N>::array_names, &Entry<N>::method}...};
  return all[at];
}

void* entry_for(size_t at, int flags) {
  const Entries& all = entries_of(at, std::make_index_sequence<SLOTS>());
  switch (flags & CONVENTIONS) {
    case NOARGS:
    case ONE:
    case VARARGS:
      return reinterpret_cast<void*>(all.two);
    case VARARGS | KEYWORDS:
      return reinterpret_cast<void*>(all.three);
    case FASTCALL:
      return reinterpret_cast<void*>(all.array);
    case FASTCALL | KEYWORDS:
      return reinterpret_cast<void*>(all.array_names);
    case METHOD | FASTCALL | KEYWORDS:
      return reinterpret_cast<void*>(all.method);
    default:
      return nullptr;
  }
}

// The slot of a function or method, a new one unless it has been hooked before; nullptr: none.
Slot* slot_of(Object* method) {
  const bool described = method->type == &PyMethodDescr_Type;
  MethodDef* definition =
      described ? static_cast<MethodDef*>(reinterpret_cast<Descriptor*>(method)->definition)
                : reinterpret_cast<Builtin*>(method)->method;
  for (size_t at = 0; at < SLOTS; ++at) {
    Slot& slot = slots[at];
    if (slot.definition == definition) {
      return &slot;
    }
    if (slot.definition == nullptr) {
      void* function = entry_for(at, definition->flags);
      if (function == nullptr) {
        return nullptr;
      }
      slot = {definition, definition->function, described, nullptr, nullptr, false};
      return &slot;
    }
  }
  return nullptr;
}

// Functions written in Python --------------------------------------------------------------------

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

// A function around which the recorder is called
// -----------------------------------------------------

struct Runner {
  Object base;
  Vectorcall vectorcall;
  Object *function, *begin, *done;
  bool as_thread;
};

Object* run_runner(Object* self, Object* const* given, size_t count, Object* names) {
  const Runner& runner = *reinterpret_cast<Runner*>(self);
  Held token = call_hook(runner.begin);
  if (!token && !hold()) {
    return nullptr;
  }
  Held result(call_object(runner.function, given, count, names));
  if (!result && runner.as_thread && PyErr_ExceptionMatches(PyExc_SystemExit) == 0) {
    // As `_thread` does it, naming the function.
    if (PyErr_FormatUnraisable != nullptr) {
      PyErr_FormatUnraisable("Exception ignored in thread started by %R", runner.function);
    } else {
      _PyErr_WriteUnraisableMsg("in thread started by", runner.function);
    }
    result = Held(kept(none));
  }
  if (!token) {
    return result.release();
  }
  if (result) {
    if (!call_hook(runner.done, token.get()) && !hold()) {
      return nullptr;
    }
    return result.release();
  }
  Error error;
  if (!call_hook(runner.done, token.get()) && !hold()) {
    return nullptr;
  }
  error.restore();
  return nullptr;
}

void free_runner(Object* self) {
  const Runner& runner = *reinterpret_cast<Runner*>(self);
  Type* type = self->type;
  for (Object* one : {runner.function, runner.begin, runner.done}) {
    Py_DecRef(one);
  }
  PyObject_Free(self);
  Py_DecRef(&type->base);
}

void free_inner(Object* self) {
  Type* type = self->type;
  PyObject_Free(self);
  Py_DecRef(&type->base);
}

// PyType_Spec with what it points to.
struct Member {
  const char* name;
  int kind;
  Size offset;
  int flags;
  const char* doc;
};
struct TypeSlot {
  int slot;
  void* value;
};
struct Spec {
  const char* name;
  int size, item_size;
  unsigned flags;
  TypeSlot* slots;
};
constexpr int SLOT_CALL = 50, SLOT_DEALLOC = 52, SLOT_MEMBERS = 72, KIND_SIZE = 19, READ_ONLY = 1;
constexpr unsigned HAS_VECTORCALL = 1U << 11, NO_INSTANCES = 1U << 7;

Type* type_of(const char* name, int size, void (*free)(Object*)) {
  static Member members[] = {
      {"__vectorcalloffset__", KIND_SIZE, sizeof(Object), READ_ONLY, nullptr}, {}};
  TypeSlot own[] = {{SLOT_CALL, reinterpret_cast<void*>(&PyVectorcall_Call)},
                    {SLOT_DEALLOC, reinterpret_cast<void*>(free)},
                    {SLOT_MEMBERS, members},
                    {0, nullptr}};
  Spec spec{name, size, 0, HAS_VECTORCALL | NO_INSTANCES, own};
  return reinterpret_cast<Type*>(PyType_FromSpec(&spec));
}

Type *inner_type = nullptr, *runner_type = nullptr;

// Attributes of types written in C
// -----------------------------------------------------------------

struct Setter {
  GetSetDef* definition;
  int (*original)(Object*, Object*, void*);
  Type* of;
  const Hook* hook;
};

constexpr size_t SETTERS = 8;
Setter setters[SETTERS];

template <size_t N>
int enter_setter(Object* self, Object* value, void* closure) {
  const Setter& setter = setters[N];
  if (setter.hook != nullptr && concurrent && PyType_IsSubtype(self->type, setter.of) != 0) {
    Held set = call_hook(setter.hook->begin, self, value != nullptr ? value : none);
    if (!set && !hold()) {
      return -1;
    }
  }
  return setter.original(self, value, closure);
}

template <size_t... N>
auto setter_entry(size_t at, std::index_sequence<N...>) {
  int (*const all[])(Object*, Object*, void*) = {&enter_setter<N>...};
  return all[at];
}

// What makes objects of a type.
struct Maker {
  Type* type;
  Object* (*original)(Type*, Object*, Object*);
  const Hook* hook;
};

Maker maker;

Object* enter_maker(Type* type, Object* given, Object* named) {
  Held made(maker.original(type, given, named));
  if (made && maker.hook != nullptr && concurrent &&
      !call_hook(maker.hook->done, none, made.get()) && !hold()) {
    return nullptr;
  }
  return made.release();
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

// What trampolines.py calls, with the interpreter's lock
// ------------------------------------------------

EXPORT void trampolines_prepare(Object* on_failure, Object* changed_type) {
  home = PyInterpreterState_Get();
  failed = kept(on_failure);
  changed = reinterpret_cast<Type*>(kept(changed_type));
  if (runner_type == nullptr) {
    runner_type = type_of("lanescope.Runner", sizeof(Runner), free_runner);
    inner_type = type_of("lanescope.Inner", sizeof(Inner), free_inner);
  }
}

EXPORT void trampolines_concurrent(int32_t is) {
  concurrent = is != 0;
}

// Whoever is within a call still refers to a hook: it is never freed.
EXPORT const Hook* trampolines_hook(Object* begin, Object* done, Object* raised, int32_t flags) {
  return new Hook{kept(begin), kept(done), kept(raised), flags};
}

// Hooks a function or method written in C; without a hook takes it off. 0: it is of no known kind.
EXPORT int32_t trampolines_method(Object* method, const Hook* hook) {
  Slot* slot = slot_of(method);
  if (slot == nullptr) {
    return 0;
  }
  slot->hook = hook;
  if (hook != nullptr) {
    slot->definition->function =
        entry_for(static_cast<size_t>(slot - slots), slot->definition->flags);
  } else {
    slot->definition->function = slot->original;
  }
  return 1;
}

EXPORT const Lock* trampolines_lock(Object* acquire, Object* release, Object* programs,
                                    Object* held, Object* becomes, Object* taken, Object* given,
                                    Object* waits, Object* waited) {
  const Slot *acquires = slot_of(acquire), *releases = slot_of(release);
  if (acquires == nullptr || releases == nullptr) {
    return nullptr;
  }
  return new Lock{kept(programs), kept(held),   kept(becomes), kept(taken), kept(given),
                  kept(waits),    kept(waited), acquires,      releases};
}

EXPORT int32_t trampolines_lock_method(Object* method, const Lock* lock, int32_t releases) {
  Slot* slot = slot_of(method);
  if (slot == nullptr) {
    return 0;
  }
  slot->lock = lock;
  slot->releases = releases != 0;
  slot->definition->function =
      lock != nullptr ? entry_for(static_cast<size_t>(slot - slots), slot->definition->flags)
                      : slot->original;
  return 1;
}

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
  Inner* made = reinterpret_cast<Inner*>(PyType_GenericAlloc(inner_type, 0));
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

// Hooks the assignment to an attribute of objects of a type. 0: there is no room.
EXPORT int32_t trampolines_setter(Object* descriptor, Object* of, const Hook* hook) {
  GetSetDef* definition =
      static_cast<GetSetDef*>(reinterpret_cast<Descriptor*>(descriptor)->definition);
  for (size_t at = 0; at < SETTERS; ++at) {
    Setter& setter = setters[at];
    if (setter.definition == nullptr) {
      setter = {definition, definition->set, nullptr, nullptr};
    }
    if (setter.definition == definition) {
      setter.of = reinterpret_cast<Type*>(kept(of));
      setter.hook = hook;
      definition->set =
          hook != nullptr ? setter_entry(at, std::make_index_sequence<SETTERS>()) : setter.original;
      return 1;
    }
  }
  return 0;
}

// Hooks the making of objects of one type.
EXPORT int32_t trampolines_maker(Object* type, const Hook* hook) {
  Type* of = reinterpret_cast<Type*>(type);
  if (maker.type == nullptr) {
    maker = {of, of->make, nullptr};
  }
  if (maker.type != of) {
    return 0;
  }
  maker.hook = hook;
  of->make = hook != nullptr ? enter_maker : maker.original;
  return 1;
}

EXPORT Object* trampolines_runner(Object* function, Object* begin, Object* done, int32_t thread) {
  Runner* made = reinterpret_cast<Runner*>(PyType_GenericAlloc(runner_type, 0));
  made->vectorcall = run_runner;
  made->function = kept(function);
  made->begin = kept(begin);
  made->done = kept(done);
  made->as_thread = thread != 0;
  return &made->base;
}
