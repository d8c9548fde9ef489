// What is known of an operator after its first call: name, filter, where its tensors are.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "journal/string_table.h"
#include "thread/thread.h"

namespace lanescope {

struct CollectivePlan;
enum class Reads : uint8_t;

// A tensor or a list of tensors among the inputs.
struct Argument {
  uint16_t position;
  bool named;  // by position, so that it counts as an input; else it is out= or the like
  bool reads;  // its elements, that is: a view reads none
  bool writes;
  bool statistics = false;  // written in training only
};

using Arguments = c10::SmallVector<Argument, 4>;

// What each call asks comes first, in two lines of a cache: an operator that runs a few times in a
// step is in none.
struct alignas(64) Operator {
  Arguments arguments;
  uint32_t arity = 0;
  Text text = 0;
  int training = -1;  // position of the argument that says so; -1: there is none
  int device = -1;    // position of the argument that names a device
  uint8_t scope = layout::SCOPE_FUNCTION;
  bool wanted = true;
  bool has_schema = false;
  bool hidden = false;     // torch's own bookkeeping around what is recorded anyway
  bool composite = false;  // made of other operators, which are seen themselves
  bool touches = true;     // elements of its tensors; false: only what is known of them
  bool births = false;     // says something even if its name is filtered: storages are born in it
  std::shared_ptr<const CollectivePlan> collective;

  bool makes_storage = false;  // a result that aliases no input
  bool workspace = false;      // results of bytes are room to work in: nobody set all of them
  Reads reads{};               // at level numerics
  std::vector<bool> fresh;     // of its results: those that are no views and no inputs
  std::string name, overload;
};

// Slow: takes the lock, copies the schema at the first call in a recording.
const Operator* learn(const at::RecordFunction& function);

// The overload's name, empty where there is none or the function is no operator. Torch before 2.8
// names it only together with the operator.
template <typename Function>
auto overload_of(const Function& function) {
  if constexpr (requires { function.overload_name(); }) {
    return std::string_view(function.overload_name());
  } else {
    const auto whole = function.operator_name();
    return whole ? whole->overload_name : std::string();
  }
}

// Where the pointer did not tell: an operator's first call on this thread, or a function whose name
// is a text made for each call.
inline const Operator* find_by_name(Thread& thread, const at::RecordFunction& function) {
  if (!overload_of(function).empty()) {
    return learn(function);
  }
  auto& slot = thread.names.find(function.name());
  if (slot.op == nullptr) {
    slot.op = learn(function);
  }
  return slot.op;
}

inline bool takes(const Operator& op, size_t inputs) {
  return inputs == op.arity || inputs == 0;  // none: they were not handed on
}

inline const Operator* find_operator(Thread& thread, const at::RecordFunction& function) {
  // The name belongs to the schema, so its address tells overloads apart too. An operator that was
  // taken away may leave its address to another one.
  const uint32_t version = recording.taken_away.load(std::memory_order_acquire);
  if (__builtin_expect(thread.operators.version != version, 0)) {
    thread.operators.clear();
    thread.names.forget_operators();
    thread.operators.version = version;
  }
  const char* name = function.name();
  auto& slot = thread.operators.slot(name);
  if (__builtin_expect(slot.key == name && takes(*slot.op, function.inputs().size()), 1)) {
    return slot.op;
  }
  const Operator* op = find_by_name(thread, function);
  if (op->has_schema) {
    slot = {name, op};
  }
  return op;
}

}  // namespace lanescope
