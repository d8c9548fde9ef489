// Hooks functions and methods written in C, and those of locks: their definition gets another
// function, which finds its slot by its own address.

#include "locks.h"

namespace trampolines {

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

namespace {

constexpr size_t SLOTS = 128;
Slot slots[SLOTS];

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

}  // namespace

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

}  // namespace trampolines
