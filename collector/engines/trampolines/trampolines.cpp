// Hooks functions where they are: the objects that a program knows stay as they are, and this
// library runs first when they are called. collector/hooks/trampolines.py loads it and calls the
// functions marked EXPORT, with the interpreter's lock.

#include "hook.h"

namespace trampolines {

EXPORT void trampolines_prepare(Object* on_failure, Object* changed_type) {
  home = PyInterpreterState_Get();
  failed = kept(on_failure);
  changed = reinterpret_cast<Type*>(kept(changed_type));
}

EXPORT void trampolines_concurrent(int32_t is) {
  concurrent = is != 0;
}

// A call in progress still refers to its hook: it is never freed.
EXPORT const Hook* trampolines_hook(Object* begin, Object* done, Object* raised, int32_t flags) {
  return new Hook{kept(begin), kept(done), kept(raised), flags};
}

}  // namespace trampolines
