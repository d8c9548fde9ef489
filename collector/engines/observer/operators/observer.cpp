// Runs when an operator, an autograd node or a scope begins and ends.
//
// On the usual path nothing here takes a lock, allocates or touches Python. No exception may
// escape: the end would then run without its context.

#include "operators/observer.h"

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "base/fault_injection.h"
#include "numerics/signature.h"
#include "operators/blends.h"
#include "operators/empty_means.h"
#include "operators/event_end.h"
#include "operators/inputs.h"
#include "operators/wraps.h"
#include "stacks/frame_hash.h"
#include "stacks/stacks.h"

namespace lanescope {

namespace {

using at::ObserverContext;
using at::RecordFunction;
using at::RecordScope;

// The backward pass of a torch.compile region.
constexpr std::string_view COMPILED_NODE = "CompiledFunctionBackward";

// Context of a user scope, which may end on another thread than it began on.
struct Scope : ObserverContext {
  Thread* thread = nullptr;
  uint32_t serial = 0;
  bool framed = false;         // it has a frame on that thread
  std::shared_ptr<Call> call;  // it ends when this call is complete
};

// True while a compiler traces: its operators run on tensors without data.
inline bool is_traced() {
  using c10::impl::TorchDispatchModeTLS;
  return __builtin_expect(
             c10::impl::tls_local_dispatch_key_set().included_.has(c10::DispatchKey::Python), 0) &&
         TorchDispatchModeTLS::get_mode(c10::impl::TorchDispatchModeKey::FAKE).has_value();
}

inline Frame& push(Thread& thread, const RecordFunction& function, const Operator* op,
                   uint8_t scope) {
  Frame& frame = thread.frames.push();
  frame.function = &function;
  frame.op = op;
  frame.sequence = -1;
  frame.births = thread.born;
  frame.averaged = -1;
  frame.factor = frame.wrapped = 0;
  frame.signature = frame.stack = 0;
  frame.accesses = static_cast<uint32_t>(thread.accesses.size());
  frame.depth = thread.depth;
  frame.scope = scope;
  frame.opened = frame.silent = frame.mutes = frame.collective = frame.values = frame.blind = false;
  return frame;
}

// Records neither the frame nor anything inside it.
[[gnu::noinline]] void mute(Thread& thread, Frame& frame) {
  frame.op = nullptr;
  frame.mutes = true;
  ++thread.muted;
  thread.counters.add(Counters::FAKE);
}

// Returns the stack, or, on a thread or task that runs only library code, the stack that started
// it.
Text stack_or_start(const Thread& thread) {
  const Text captured = capture_stack();
  return captured != 0 ? captured : thread.shared.started;
}

// Returns the stack of an operator. Captures it only when its hash is new on this thread. If stacks
// cannot be hashed, samples some operators of each kind.
inline Text known_stack(Thread& thread, const Operator& op) {
  const uint64_t hash = raw_stack();
  if (__builtin_expect(hash != 0, 1)) {
    Text text = *thread.met.find(hash);
    if (__builtin_expect(text == MetStacks::UNKNOWN, 0)) {
      text = capture_stack();
      // Not through the pointer of before: capturing may run a finalizer of the program, whose
      // operators meet other stacks.
      *thread.met.find(hash) = text;
    }
    return text != 0 ? text : thread.shared.started;
  }
  const bool due = thread.samples.due(op.text, thread.shared.module, thread.shared.phase);
  return due ? stack_or_start(thread) : 0;
}

// The part of the start that few operators need.
[[gnu::noinline]] void begin_rarely(Thread& thread, Frame& frame, const Inputs& inputs) {
  if (frame.op->collective && !thread.call) {
    begin_call(thread, *frame.op->collective, inputs.values);
    frame.collective = true;
  }
  if (recording.op_stacks) {
    frame.stack = stack_or_start(thread);
  }
  if (frame.op->means) {
    frame.averaged = averaged(*frame.op, inputs);
  }
  if (frame.op->blends) {
    frame.factor = factor_of(inputs);
  }
  if (frame.op->wraps != 0 && recording.access) {
    frame.wrapped = wrapped(*frame.op, inputs);
  }
}

void begin_operator(Thread& thread, const RecordFunction& function) {
  const Operator& op = *find_operator(thread, function);
  if (!op.wanted) {
    if (!op.hidden) {
      thread.counters.add(Counters::FILTERED);
    }
    if (!op.births) {
      return;
    }
  }
  Frame& frame = push(thread, function, &op, op.scope);
  frame.silent = !op.wanted;
  const bool note = recording.access && !op.composite && op.touches;
  const Inputs inputs = inputs_of(op, function);
  Signature signature;
  c10::DispatchKeySet keys;
  for (const Argument& argument : op.arguments) {
    if (argument.position >= inputs.values.size()) {
      break;
    }
    each_tensor(inputs.values[argument.position], [&](const c10::TensorImpl& tensor) {
      keys = keys | tensor.key_set();
      if (argument.named) {
        signature.add(tensor);
      }
      if (note && (argument.reads || argument.writes || !op.wanted)) {
        const bool writes = argument.writes && !(argument.statistics && inputs.evaluates(op));
        note_access(thread, tensor, writes ? layout::ACCESS_WRITE : 0);
      }
    });
  }
  if (__builtin_expect(note && op.generator >= 0, 0)) {
    note_draw(thread, inputs.generator(op));
  }
  // Only tensors of a subclass, and factory functions, can be without data.
  if ((signature.empty() || keys.has(c10::DispatchKey::Python)) && is_traced()) {
    thread.accesses.resize(frame.accesses);
    mute(thread, frame);
    return;
  }
  if (__builtin_expect(recording.numerics, 0)) {
    begin_values(thread, frame, inputs.values);
  }
  if (!op.wanted) {
    return;
  }
  frame.name = op.text;
  frame.sequence = function.seqNr();
  frame.signature = signature_text(thread, op, inputs, signature);
  if (recording.sampled_stacks) {
    frame.stack = known_stack(thread, op);
  }
  if (__builtin_expect(op.rare || recording.op_stacks, 0)) {
    begin_rarely(thread, frame, inputs);
  }
  open_event(thread, frame);
  if (__builtin_expect(frame.collective, 0)) {
    open_call(thread, frame);
  }
}

[[gnu::noinline]] void begin_node(Thread& thread, const RecordFunction& function) {
  std::string_view name = function.name();
  const size_t colons = name.rfind("::");
  if (colons != std::string_view::npos) {
    name.remove_prefix(colons + 2);
  }
  Frame& frame = push(thread, function, nullptr, layout::SCOPE_BACKWARD);
  frame.name = thread.names.find(name).text;
  frame.sequence = function.seqNr();
  const Inputs inputs{function.inputs()};
  Signature signature;
  inputs.each([&](const c10::TensorImpl& tensor) { signature.add(tensor); });
  frame.signature = signature.text(thread, [&](Spelling& spelling) {
    inputs.each([&](const c10::TensorImpl& tensor) { spelling.add(tensor); });
  });
  if (__builtin_expect(recording.numerics, 0) && name.find(COMPILED_NODE) != name.npos) {
    begin_blind(thread, frame);
  }
  open_event(thread, frame);
}

[[gnu::noinline]] std::unique_ptr<ObserverContext> begin_scope(Thread& thread,
                                                               const RecordFunction& function) {
  auto scope = std::make_unique<Scope>();
  scope->thread = &thread;
  scope->serial = thread.shared.serial;
  const std::string_view name = function.name();
  if (function.isAsync()) {
    // Work of a collective: created inside the call, or run by a thread of the backend. Only the
    // latter begins and ends in order on one thread.
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
  Frame& frame = push(thread, function, nullptr, layout::SCOPE_USER);
  frame.name = known.text;
  open_event(thread, frame);
  scope->framed = true;
  return scope;
}

// A scope ended on another thread than it began on: gives the end time to its owner.
[[gnu::noinline]] void end_elsewhere(const Scope& scope, const RecordFunction& function) {
  const int64_t end = system_now();
  Process& here = process();
  std::lock_guard<std::mutex> hold(here.mutex);
  for (Thread* thread : here.threads) {
    if (thread == scope.thread && thread->shared.serial == scope.serial) {
      thread->strays.push_back({&function, end});
      thread->stray_count.fetch_add(1);
    }
  }
}

[[gnu::noinline]] void collect_strays(Thread& thread) {
  std::vector<Thread::Stray> strays;
  {
    std::lock_guard<std::mutex> hold(process().mutex);
    strays.swap(thread.strays);
    thread.stray_count = 0;
  }
  for (const Thread::Stray& stray : strays) {
    Frame frame;
    if (thread.frames.take(stray.function, frame)) {
      frame.accesses = static_cast<uint32_t>(thread.accesses.size());
      const Closing closing(thread, frame);
      write_event(thread, frame, stray.end);
    }
  }
}

// Counts an exception in a callback and removes the frame of its event.
void failed(Thread* thread, const RecordFunction& function) noexcept {
  if (thread == nullptr) {
    return;
  }
  thread->counters.add(Counters::ERRORS);
  Frame frame;
  if (thread->frames.take(&function, frame)) {
    const Closing closing(*thread, frame);
  }
}

std::unique_ptr<ObserverContext> on_start(const RecordFunction& function) noexcept {
  Thread* thread = nullptr;
  try {
    thread = this_thread();
    if (thread == nullptr || thread->shared.busy != 0 || thread->muted != 0 ||
        !recording.active.load(std::memory_order_relaxed)) {
      return nullptr;
    }
    if (__builtin_expect(thread->stray_count.load(std::memory_order_relaxed) != 0, 0)) {
      collect_strays(*thread);
    }
    std::unique_ptr<ObserverContext> context;
    fault_at(Fault::START);
    switch (function.scope()) {
      case RecordScope::BACKWARD_FUNCTION:
        begin_node(*thread, function);
        break;
      case RecordScope::USER_SCOPE:
        context = begin_scope(*thread, function);
        break;
      default:
        begin_operator(*thread, function);
    }
    fault_at(Fault::BEGUN);
    return context;
  } catch (...) {
    failed(thread, function);
    return nullptr;
  }
}

// Ends an event while inner ones are still open. Usually it has no frame, because it was left out.
[[gnu::noinline]] void end_out_of_order(Thread& thread, const RecordFunction& function) {
  Frame frame;
  if (thread.frames.take(&function, frame)) {
    frame.accesses = static_cast<uint32_t>(thread.accesses.size());
    end_frame(thread, frame, function);
  }
}

void end_event(Thread& thread, const RecordFunction& function) {
  FrameStack& frames = thread.frames;
  if (frames.empty()) {
    return;
  }
  if (__builtin_expect(frames.top().function == &function, 1)) {
    const Frame& frame = frames.top();
    frames.pop();  // still readable, as nothing is pushed before the end
    end_frame(thread, frame, function);
    return;
  }
  end_out_of_order(thread, function);
}

void on_end(const RecordFunction& function, ObserverContext* context) noexcept {
  Thread* thread = nullptr;
  try {
    thread = entered_thread();
    fault_at(Fault::END);
    if (context != nullptr) {
      const auto& scope = static_cast<const Scope&>(*context);
      if (scope.call && (thread = this_thread()) != nullptr) {
        complete(*thread, *scope.call, thread->clock.now());
      }
      if (scope.framed && scope.thread != thread) {
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
  callback.needsInputs(true).needsOutputs(recording.access);
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
