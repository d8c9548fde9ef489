// What locks hand over, as a function of Python's own kind: ctypes would take longer to call than
// all of the rest.

#include <cstdint>

extern "C" {
// Of Python's stable interface; there is no need of its headers. Whatever loads this library has it.
long PyLong_AsLong(void* number);
void Py_IncRef(void* object);

void lanescope_handover(int32_t kind, int64_t target);

// Called with what the function is bound to, the kind, and with its one argument (METH_O), the lock
// itself: its address is its number.
__attribute__((visibility("default"))) void* lanescope_handed_over(void* kind, void* lock) {
  lanescope_handover(static_cast<int32_t>(PyLong_AsLong(kind)), reinterpret_cast<intptr_t>(lock));
  Py_IncRef(kind);
  return kind;
}
}
