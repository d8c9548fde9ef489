// Makes types whose objects are called by a vectorcall of their own.

#pragma once

#include "hook.h"

namespace trampolines {

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

inline Type* vectorcall_type(const char* name, int size, void (*free)(Object*)) {
  static Member members[] = {
      {"__vectorcalloffset__", KIND_SIZE, sizeof(Object), READ_ONLY, nullptr}, {}};
  TypeSlot own[] = {{SLOT_CALL, reinterpret_cast<void*>(&PyVectorcall_Call)},
                    {SLOT_DEALLOC, reinterpret_cast<void*>(free)},
                    {SLOT_MEMBERS, members},
                    {0, nullptr}};
  Spec spec{name, size, 0, HAS_VECTORCALL | NO_INSTANCES, own};
  return reinterpret_cast<Type*>(PyType_FromSpec(&spec));
}

}  // namespace trampolines
