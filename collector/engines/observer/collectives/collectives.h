// Collectives: what is called, on which group, and when it was complete.
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

// Where an operator's arguments are; -1: it has none of the kind.
struct CollectivePlan {
  Text name;
  bool barrier;   // moves no data of the program's
  bool paired;    // send or recv
  bool blocking;  // over when the call returns
  int group = -1;
  int tensors = -1;
  int peer = -1;
  int root = -1;
  int reduce_op = -1;
  int asynchronous = -1;
};

// A collective that is being called. As debug information of its thread it travels to the worker
// threads of the backend that carry it out, and so ties their completion to the call.
struct Call : c10::DebugInfoBase {
  Text name = 0;
  Text group_text = 0;  // "group TAB size TAB peer TAB root TAB reduce_op"
  Text signature = 0;
  Text stack = 0;
  int64_t sequence = 0;
  int64_t bytes = 0;
  bool asynchronous = true;
  bool blocking = false;
  bool on_cpu = false;
  uint32_t open_level = NOT_OPEN;
  uint16_t runnable = 0;  // as Runnable says it

  static constexpr uint32_t NOT_OPEN = UINT32_MAX;
};

// Null for an operator that is no collective.
std::shared_ptr<const CollectivePlan> plan_collective(const c10::FunctionSchema& schema);

// What a collective does with the elements of an argument.
struct ArgumentUse {
  bool reads, writes;
};

// Schemas of collectives do not say which tensors they write. Their names and those of their
// arguments do.
ArgumentUse use_of(const c10::FunctionSchema& schema, size_t position);

// The call begins on this thread: it becomes `thread.call`.
void begin_call(Thread& thread, const CollectivePlan& plan,
                c10::ArrayRef<const c10::IValue> inputs);

// The same, once its beginning is known: noted among the open events, in case it never returns.
void open_call(Thread& thread, const Frame& frame);

// It returned; its operation may be under way.
void end_call(Thread& thread, const Frame& frame, int64_t end);

// `thread.call` is over, recorded or not.
void forget_call(Thread& thread) noexcept;

// Forget a call whose end cannot be recorded; one that ended is forgotten already.
void drop_call(Thread& thread) noexcept;

// The call that the calling thread works for, on a backend's own thread.
std::shared_ptr<Call> call_worked_for();

// The operation of a call is complete.
void complete(Thread& thread, const Call& call, int64_t end);

}  // namespace lanescope
