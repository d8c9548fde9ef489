// What is known of an operator after its first call: name, filter, where its tensors are.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "texts.h"
#include "thread.h"

namespace lanescope {

struct CollectivePlan;
enum class Reads : uint8_t;

// A tensor or a list of tensors among the inputs.
struct Argument {
  uint16_t position;
  bool named;   // by position, so that it counts as an input; else it is out= or the like
  bool reads;   // its elements, that is: a view reads none
  bool writes;
  bool statistics = false;  // written in training only
};

struct Operator {
  std::string name, overload;
  Text text = 0;
  uint8_t scope = layout::SCOPE_FUNCTION;
  int training = -1;  // position of the argument that says so; -1: there is none
  bool wanted = true;
  bool has_schema = false;
  bool hidden = false;     // torch's own bookkeeping around what is recorded anyway
  bool composite = false;  // made of other operators, which are seen themselves
  bool touches = true;     // elements of its tensors; false: only what is known of them
  bool makes_storage = false;  // a result that aliases no input
  int device = -1;  // position of the argument that names a device
  size_t arity = 0;
  std::vector<Argument> arguments;
  std::shared_ptr<const CollectivePlan> collective;
  std::vector<bool> fresh;  // of its results: those that are no views and no inputs
  bool workspace = false;   // results of bytes are room to work in: nobody set all of them
  Reads reads{};            // at level numerics

  // Whether it says something even if its name is filtered: storages are born in it.
  bool births = false;
};

// Slow: takes the lock, copies the schema at the first call in a recording.
const Operator* learn(const at::RecordFunction& function);

// Where the pointer did not tell: an operator's first call on this thread, or a function whose name
// is a text made for each call.
inline const Operator* find_by_name(Thread& thread, const at::RecordFunction& function) {
  if (*function.overload_name() != '\0') {
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
  // taken away may leave its address to another one, of another name or number of arguments.
  const char* name = function.name();
  auto& slot = thread.operators.slot(name);
  if (__builtin_expect(slot.key == name && std::strcmp(slot.op->name.c_str(), name) == 0 &&
                           takes(*slot.op, function.inputs().size()),
                       1)) {
    return slot.op;
  }
  const Operator* op = find_by_name(thread, function);
  if (op->has_schema) {
    slot = {name, op};
  }
  return op;
}

}  // namespace lanescope
