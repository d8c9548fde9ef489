// Collectives: the call, its group, and when it was complete.
//
// Every collective passes through c10d::* or _c10d_functional::*, whether Python called
// torch.distributed or DDP's reducer issued it from C++. The observer counts the outermost one.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "journal/string_table.h"

namespace lanescope {

class Thread;
struct Frame;

// Positions of an operator's arguments; -1: it has no such argument.
struct CollectivePlan {
  Text name;
  bool barrier;   // moves none of the program's data
  bool paired;    // send or recv
  bool blocking;  // complete when the call returns
  int group = -1;
  int tensors = -1;
  int peer = -1;
  int root = -1;
  int reduce_op = -1;
  int sent = -1;      // of an all-to-all: tensors or split sizes
  int received = -1;  // the same
  int asynchronous = -1;
};

// A collective being called. As debug information of its thread it reaches the backend's worker
// threads and connects their completion to the call.
struct Call : c10::DebugInfoBase {
  Text name = 0;
  Text group_text = 0;  // "group TAB size TAB peer TAB root TAB reduce_op TAB splits"
  Text signature = 0;
  Text stack = 0;
  int64_t sequence = 0;
  int64_t bytes = 0;
  bool asynchronous = true;
  bool blocking = false;
  bool on_cpu = false;
  uint32_t open_level = NOT_OPEN;
  uint16_t runnable = 0;  // run queue delay, as Runnable encodes it

  static constexpr uint32_t NOT_OPEN = UINT32_MAX;
};

// Returns null if the operator is not a collective.
std::shared_ptr<const CollectivePlan> plan_collective(const c10::FunctionSchema& schema);

// What a collective does with the elements of an argument.
struct ArgumentUse {
  bool reads, writes;
};

// Schemas of collectives do not say which tensors they write. Their names and those of their
// arguments do.
ArgumentUse use_of(const c10::FunctionSchema& schema, size_t position);

// Begins a call on this thread and sets `thread.call`.
void begin_call(Thread& thread, const CollectivePlan& plan,
                c10::ArrayRef<const c10::IValue> inputs);

// Adds the call to the open events, in case it never returns.
void open_call(Thread& thread, const Frame& frame);

// The call returned; its operation may still be running.
void end_call(Thread& thread, const Frame& frame, int64_t end);

// Clears `thread.call`, recorded or not.
void forget_call(Thread& thread) noexcept;

// Forgets a call whose end cannot be recorded. Does nothing after a regular end.
void drop_call(Thread& thread) noexcept;

// Returns the call that the calling thread, one of a backend, works for.
std::shared_ptr<Call> call_worked_for();

// Records that the operation of a call is complete.
void complete(Thread& thread, const Call& call, int64_t end);

}  // namespace lanescope
