// The parts of Python's C interface that the library uses. They are the same in Python 3.10
// to 3.14, on 64 bits and with the interpreter's lock, so no headers of Python are needed.

#pragma once

#include <cstddef>
#include <cstdint>

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
