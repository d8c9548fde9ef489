// Facts about an operator, learned at its first call: name, filter, positions of its tensors.
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
  bool named;  // passed by position, so it is an input; otherwise it is out= or similar
  bool reads;  // its elements; a view reads none
  bool writes;
  bool statistics = false;  // written in training only
};

using Arguments = c10::SmallVector<Argument, 4>;

// Fields that each call needs come first, in two cache lines: an operator that runs a few times per
// step is not cached.
struct alignas(64) Operator {
  Arguments arguments;
  uint32_t arity = 0;
  Text text = 0;
  int training = -1;  // position of that argument; -1: it has none
  int device = -1;    // position of that argument
  int generator = -1;
  int reduction = -1;
  uint8_t scope = layout::SCOPE_FUNCTION;
  bool wanted = true;
  bool has_schema = false;
  bool hidden = false;     // torch's bookkeeping around events that are recorded anyway
  bool composite = false;  // made of other operators, which are observed themselves
  bool touches = true;     // reads or writes elements; false: only metadata
  bool births = false;  // observed even if filtered, for the storages that it allocates or writes
  bool means = false;   // may return a mean of all elements
  bool blends = false;  // adds tensors by weights, as moving averages do
  char wraps = 0;       // +, -, * or c (a cast): its bytes may begin again; 0: they do not
  bool rare = false;    // one of these, or a collective
  std::shared_ptr<const CollectivePlan> collective;

  bool makes_storage = false;   // a result that aliases no input
  bool counts_targets = false;  // a loss that ignores some targets, and returns the others' weight
  bool workspace = false;       // results of type uint8 are work buffers, partly uninitialised
  Reads reads{};                // at level numerics
  std::vector<bool> fresh;      // per result: not a view, not an input
  std::string name, overload;
};

// Slow: takes the lock, and reads the schema at the first call in a recording.
const Operator* learn(const at::RecordFunction& function);

// Returns the overload's name, empty without one or if the function is not an operator. Before 2.8
// torch provides it only together with the operator's name.
template <typename Function>
auto overload_of(const Function& function) {
  if constexpr (requires { function.overload_name(); }) {
    return std::string_view(function.overload_name());
  } else {
    const auto whole = function.operator_name();
    return whole ? whole->overload_name : std::string();
  }
}

// Finds an operator by name if its address is not cached: at its first call on this thread, or if
// the name is a text made for each call.
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
  return inputs == op.arity || inputs == 0;  // 0: they were not passed on
}

inline const Operator* find_operator(Thread& thread, const at::RecordFunction& function) {
  // The name belongs to the schema, so its address also distinguishes overloads. After an operator
  // was deregistered, another may use its address.
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
