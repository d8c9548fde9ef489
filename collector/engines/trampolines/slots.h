// Functions and methods written in C: their definitions are shared by all objects of them.

#pragma once

#include "hook.h"

namespace trampolines {

enum Convention { VARARGS = 1, KEYWORDS = 2, NOARGS = 4, ONE = 8, FASTCALL = 128, METHOD = 512 };
constexpr int CONVENTIONS = VARARGS | KEYWORDS | NOARGS | ONE | FASTCALL | METHOD;

struct Lock;

struct Slot {
  MethodDef* definition;
  void* original;
  bool has_self;     // the first argument is the object whose method it is
  const Hook* hook;  // nullptr, and no lock: nothing, the call goes through
  const Lock* lock;
  bool releases;
};

// Calls the method itself.
Object* call_method(const Slot& slot, Object* self, Object* owner, const Call& call);

}  // namespace trampolines
