// The observer: what runs when an operator, an autograd node or a scope begins and ends.
//
// Nothing in here may throw, take a lock, allocate or touch Python on the usual path. An exception
// that escaped the start would leave the end without a context.

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <cstring>

#include "access.h"
#include "clock.h"
#include "collectives.h"
#include "observer.h"
#include "operators.h"
#include "process.h"
#include "signature.h"
#include "stacks.h"
#include "thread.h"

namespace lanescope {

namespace {

using at::ObserverContext;
using at::RecordFunction;
using at::RecordScope;

// Of a user scope, which may end on another thread than it began on.
struct Scope : ObserverContext {
  Thread* thread = nullptr;
  uint32_t serial = 0;
  bool framed = false;         // has a frame on that thread
  std::shared_ptr<Call> call;  // its end is the completion of this call
};

constexpr std::string_view COMPILED_SCOPE = "Torch-Compiled Region";

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// A compiler that traces runs operators on tensors without data.
bool is_traced() {
  using c10::impl::TorchDispatchModeTLS;
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python) &&
         TorchDispatchModeTLS::get_mode(c10::impl::TorchDispatchModeKey::FAKE).has_value();
}

Frame& push(Thread& thread, const RecordFunction& function, uint8_t scope) {
  thread.frames.emplace_back();
  Frame& frame = thread.frames.back();
  frame.function = &function;
  frame.scope = scope;
  frame.sequence = -1;
  frame.accesses = static_cast<uint32_t>(thread.accesses.size());
  frame.births = thread.born;
  frame.depth = thread.depth;
  return frame;
}

// The event of the frame begins now.
void open(Thread& thread, Frame& frame) {
  Process& here = process();
  frame.step = here.step.load(std::memory_order_relaxed);
  frame.module = thread.shared.module;
  frame.phase = thread.shared.phase;
  Record record{};
  record.kind = layout::KIND_OP;
  record.scope = frame.scope;
  record.depth = frame.depth;
  record.name = frame.name;
  record.sequence = -1;
  record.step = frame.step;
  record.module = frame.module;
  record.phase = frame.phase;
  frame.opened = true;
  ++thread.depth;
  record.start = frame.start = now();
  frame.open_level = thread.push_open(record);
}

void mute(Thread& thread, const RecordFunction& function) {
  Frame& frame = push(thread, function, layout::SCOPE_FUNCTION);
  frame.silent = frame.mutes = true;
  ++thread.muted;
  thread.counters.add(Counters::FAKE);
}

void begin_operator(Thread& thread, const RecordFunction& function) {
  if (__builtin_expect(is_traced(), 0)) {
    mute(thread, function);
    return;
  }
  const Operator& op = *find_operator(thread, function);
  if (op.hidden) {
    return;
  }
  if (!op.wanted) {
    thread.counters.add(Counters::FILTERED);
    if (!op.births) {
      return;
    }
  }
  const bool note = process().settings.access && !op.composite;
  Frame& frame = push(thread, function, layout::SCOPE_FUNCTION);
  frame.op = &op;
  frame.silent = !op.wanted;
  Signature signature;
  const auto inputs = function.num_inputs() != 0 ? function.inputs()
                                                 : c10::ArrayRef<const c10::IValue>();
  for (const Argument& argument : op.arguments) {
    if (argument.position >= inputs.size()) {
      break;
    }
    each_tensor(inputs[argument.position], [&](const c10::TensorImpl& tensor) {
      if (argument.named && op.wanted) {
        signature.add(tensor);
      }
      if (note && (argument.reads || argument.writes || frame.silent)) {
        note_access(thread, tensor, argument.writes ? layout::ACCESS_WRITE : 0);
      }
    });
  }
  if (frame.silent) {
    return;
  }
  if (!op.has_schema) {
    for (const c10::IValue& input : inputs) {
      signature.add(input);
    }
  } else if (signature.count() == 0 && op.device >= 0 &&
             static_cast<size_t>(op.device) < inputs.size() && inputs[op.device].isDevice()) {
    signature.add(inputs[op.device].toDevice());
  }
  if (op.collective && !thread.call) {
    begin_call(thread, *op.collective, inputs);
    frame.collective = true;
  }
  frame.name = op.text;
  frame.sequence = function.seqNr();
  frame.signature = signature.text(thread);
  frame.stack = process().settings.op_stacks ? capture_stack() : 0;
  open(thread, frame);
}

void begin_node(Thread& thread, const RecordFunction& function) {
  std::string_view name = function.name();
  const size_t colons = name.rfind("::");
  if (colons != std::string_view::npos) {
    name.remove_prefix(colons + 2);
  }
  Frame& frame = push(thread, function, layout::SCOPE_BACKWARD);
  frame.name = thread.names.find(name).text;
  frame.sequence = function.seqNr();
  Signature signature;
  if (function.num_inputs() != 0) {
    for (const c10::IValue& input : function.inputs()) {
      signature.add(input);
    }
  }
  frame.signature = signature.text(thread);
  open(thread, frame);
}

std::unique_ptr<ObserverContext> begin_scope(Thread& thread, const RecordFunction& function) {
  auto scope = std::make_unique<Scope>();
  scope->thread = &thread;
  scope->serial = thread.shared.serial;
  const std::string_view name = function.name();
  if (function.isAsync()) {
    // Work for a collective: made inside the call, or run for it by a thread of the backend.
    // Only the latter begins and ends in order on one thread.
    if (thread.call) {
      scope->call = thread.call;
      return scope;
    }
    scope->call = call_worked_for();
    if (!scope->call) {
      return scope;
    }
  }
  const NameCache::Slot& known = thread.names.find(name);
  if (!known.wanted) {
    thread.counters.add(Counters::FILTERED);
    return scope;
  }
  Frame& frame = push(thread, function,
                      starts_with(name, COMPILED_SCOPE) ? layout::SCOPE_COMPILED
                                                        : layout::SCOPE_USER);
  frame.name = known.text;
  open(thread, frame);
  scope->framed = true;
  return scope;
}

int64_t sequence_of(const Frame& frame) {
  if (frame.scope == layout::SCOPE_BACKWARD) {
    return frame.sequence;
  }
  // The number counts up with each node that is made: it did, so the first one is this op's.
  if (frame.sequence >= 0 &&
      static_cast<int64_t>(at::sequence_number::peek()) > frame.sequence) {
    return frame.sequence;
  }
  return -1;
}

void write_event(Thread& thread, const Frame& frame, int64_t end) {
  Record* slot = thread.journal.next();
  if (slot == nullptr) {
    thread.note_lost();
    return;
  }
  slot->scope = frame.scope;
  slot->depth = frame.depth;
  slot->name = frame.name;
  slot->start = frame.start;
  slot->end = end;
  slot->sequence = sequence_of(frame);
  slot->step = frame.step;
  slot->module = frame.module;
  slot->signature = frame.signature;
  slot->stack = frame.stack;
  slot->phase = frame.phase;
  thread.journal.publish(layout::KIND_OP);
}

void finish_operator(Thread& thread, const Frame& frame, const RecordFunction& function,
                     int64_t end) {
  bool left_out = frame.silent;
  if (!left_out && end - frame.start < process().settings.minimum_ns) {
    thread.counters.add(Counters::SHORTER);
    left_out = true;
  }
  if (frame.op->births) {
    for (const c10::IValue& output : function.outputs()) {
      each_tensor(output, [&](const c10::TensorImpl& tensor) {
        note_result(thread, tensor, frame.accesses, frame.births);
      });
    }
  }
  if (left_out) {
    keep_births(thread, frame.accesses);
  }
  if (thread.accesses.size() > frame.accesses) {
    write_accesses(thread, frame.accesses);
  }
  if (!left_out) {
    write_event(thread, frame, end);
  }
}

// Undoes what the beginning of a frame did to its thread.
struct Closing {
  Thread& thread;
  const Frame& frame;

  ~Closing() {
    if (frame.opened) {
      thread.pop_open(frame.open_level);
      --thread.depth;
    }
    if (frame.mutes) {
      --thread.muted;
    }
    thread.accesses.resize(frame.accesses);
  }
};

// Takes an event's frame off the thread. False: it has none. Usually it is the last one.
bool take(Thread& thread, const RecordFunction* function, Frame& frame) {
  size_t i = thread.frames.size();
  while (i != 0 && thread.frames[i - 1].function != function) {
    --i;
  }
  if (i == 0) {
    return false;
  }
  frame = thread.frames[i - 1];
  if (i == thread.frames.size()) {
    thread.frames.pop_back();
  } else {  // out of order: what began inside goes on
    frame.accesses = static_cast<uint32_t>(thread.accesses.size());
    thread.frames.erase(thread.frames.begin() + static_cast<std::ptrdiff_t>(i) - 1);
  }
  return true;
}

void end_event(Thread& thread, const RecordFunction& function) {
  Frame frame;
  if (!take(thread, &function, frame)) {
    return;
  }
  const int64_t end = frame.opened ? now() : 0;
  const Closing closing{thread, frame};
  if (frame.op != nullptr) {
    finish_operator(thread, frame, function, end);
  } else if (frame.opened) {
    write_event(thread, frame, end);
  }
  if (frame.collective) {
    end_call(thread, frame.start, end, frame.step, frame.module, frame.phase);
  }
}

// A scope ended on another thread than it began on: leave the instant to its owner.
void end_elsewhere(const Scope& scope, const RecordFunction& function) {
  const int64_t end = now();
  Process& here = process();
  std::lock_guard<std::mutex> hold(here.mutex);
  for (Thread* thread : here.threads) {
    if (thread == scope.thread && thread->shared.serial == scope.serial) {
      thread->strays.push_back({&function, end});
      thread->stray_count.fetch_add(1);
    }
  }
}

void collect_strays(Thread& thread) {
  std::vector<Thread::Stray> strays;
  {
    std::lock_guard<std::mutex> hold(process().mutex);
    strays.swap(thread.strays);
    thread.stray_count = 0;
  }
  for (const Thread::Stray& stray : strays) {
    Frame frame;
    if (take(thread, stray.function, frame)) {
      const Closing closing{thread, frame};
      write_event(thread, frame, stray.end);
    }
  }
}

// An exception in a callback: count it, and leave no half of an event behind.
void failed(Thread* thread, const RecordFunction& function) noexcept {
  if (thread == nullptr) {
    return;
  }
  thread->counters.add(Counters::ERRORS);
  Frame frame;
  if (take(*thread, &function, frame)) {
    const Closing closing{*thread, frame};
  }
}

std::unique_ptr<ObserverContext> on_start(const RecordFunction& function) noexcept {
  Thread* thread = nullptr;
  try {
    thread = this_thread();
    if (thread == nullptr || thread->shared.busy != 0 || thread->muted != 0 ||
        !process().active.load(std::memory_order_relaxed)) {
      return nullptr;
    }
    if (__builtin_expect(thread->stray_count.load(std::memory_order_relaxed) != 0, 0)) {
      collect_strays(*thread);
    }
    switch (function.scope()) {
      case RecordScope::BACKWARD_FUNCTION:
        begin_node(*thread, function);
        return nullptr;
      case RecordScope::USER_SCOPE:
        return begin_scope(*thread, function);
      default:
        begin_operator(*thread, function);
        return nullptr;
    }
  } catch (...) {
    failed(thread, function);
    return nullptr;
  }
}

void on_end(const RecordFunction& function, ObserverContext* context) noexcept {
  Thread* thread = nullptr;
  try {
    thread = entered_thread();
    if (context != nullptr) {
      const auto& scope = static_cast<const Scope&>(*context);
      if (scope.call && (thread = this_thread()) != nullptr) {
        complete(*thread, *scope.call, now());
      }
      if (scope.thread != thread && scope.framed) {
        end_elsewhere(scope, function);
        return;
      }
    }
    if (thread != nullptr) {
      end_event(*thread, function);
    }
  } catch (...) {
    failed(thread, function);
  }
}

uint64_t handle = 0;

}  // namespace

void install() {
  auto callback = at::RecordFunctionCallback(on_start, on_end);
  callback.needsInputs(true).needsOutputs(process().settings.access);
  callback.scopes({RecordScope::FUNCTION, RecordScope::BACKWARD_FUNCTION,
                   RecordScope::TORCHSCRIPT_FUNCTION, RecordScope::USER_SCOPE});
  handle = at::addGlobalCallback(callback);
}

void remove() {
  if (handle != 0) {
    at::removeCallback(handle);
  }
  handle = 0;
}

}  // namespace lanescope
