// A callable of the program, such as a thread's function, with the recorder called around it.

#include "vectorcall_type.h"

namespace trampolines {

namespace {

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

}  // namespace

EXPORT Object* trampolines_runner(Object* function, Object* begin, Object* done, int32_t thread) {
  static Type* const type = vectorcall_type("lanescope.Runner", sizeof(Runner), free_runner);
  Runner* made = reinterpret_cast<Runner*>(PyType_GenericAlloc(type, 0));
  made->vectorcall = run_runner;
  made->function = kept(function);
  made->begin = kept(begin);
  made->done = kept(done);
  made->as_thread = thread != 0;
  return &made->base;
}

}  // namespace trampolines
