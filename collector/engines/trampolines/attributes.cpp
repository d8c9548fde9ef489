// Hooks assignments to attributes of types written in C, and the making of objects of types.

#include <iterator>

#include "hook.h"

// Assignments in progress on all threads. Within one, torch may give Python's lock to another
// thread while the attribute still leads to a tensor that is being freed.
extern "C" {
__attribute__((visibility("default"))) int32_t trampolines_assigning = 0;
}

namespace trampolines {

namespace {

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
  // What None takes the place of is freed when it is no longer found: recording takes time, in
  // which threads that read the attribute would meet it more often than without.
  Held dropped(nullptr);
  if (concurrent && self->type == setter.of && (value == nullptr || value == none)) {
    dropped = Held(setter.definition->get(self, closure));
    if (!dropped) {
      PyErr_Clear();
    }
  }
  ++trampolines_assigning;
  const int result = setter.original(self, value, closure);
  dropped = Held(nullptr);
  --trampolines_assigning;
  return result;
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

Maker makers[2];

template <size_t N>
Object* enter_maker(Type* type, Object* given, Object* named) {
  const Maker& maker = makers[N];
  Held made(maker.original(type, given, named));
  if (made && maker.hook != nullptr && concurrent &&
      !call_hook(maker.hook->done, none, made.get()) && !hold()) {
    return nullptr;
  }
  return made.release();
}

constexpr decltype(Maker::original) MAKER_ENTRIES[] = {enter_maker<0>, enter_maker<1>};

}  // namespace

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

// Hooks the making of objects of a type. 0: there is no room.
EXPORT int32_t trampolines_maker(Object* type, const Hook* hook) {
  Type* of = reinterpret_cast<Type*>(type);
  for (size_t at = 0; at < std::size(makers); ++at) {
    Maker& maker = makers[at];
    if (maker.type == nullptr) {
      maker = {of, of->make, nullptr};
    }
    if (maker.type == of) {
      maker.hook = hook;
      of->make = hook != nullptr ? MAKER_ENTRIES[at] : maker.original;
      return 1;
    }
  }
  return 0;
}

}  // namespace trampolines
