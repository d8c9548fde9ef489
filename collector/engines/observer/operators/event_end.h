// Ends events: writes their records and restores the state of the thread.
#pragma once

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

#include "base/fault_injection.h"
#include "base/recording_state.h"
#include "collectives/collectives.h"
#include "operators/blends.h"
#include "operators/empty_means.h"
#include "operators/inputs.h"
#include "operators/operators.h"
#include "operators/tensor_capture.h"
#include "storages/access_recorder.h"
#include "thread/frames.h"
#include "thread/thread.h"

namespace lanescope {

// Starts the event of a frame. The caller has set all fields but step, module, phase and time.
inline void open_event(Thread& thread, Frame& frame) {
  frame.step = recording.step.load(std::memory_order_relaxed);
  frame.module = thread.shared.module;
  frame.phase = thread.shared.phase;
  frame.opened = true;
  ++thread.depth;
  frame.start = thread.clock.now();
  frame.open_level = thread.push_open(layout::KIND_OP, frame.scope, frame.depth, frame.name,
                                      frame.start, frame.step, frame.module, frame.phase);
}

inline int64_t sequence_of(const Frame& frame) {
  if (frame.op == nullptr || frame.sequence < 0) {
    return frame.sequence;
  }
  // torch increments the number with each node made: if it did so, the first node is this op's.
  return static_cast<int64_t>(at::sequence_number::peek()) > frame.sequence ? frame.sequence : -1;
}

inline void write_event(Thread& thread, const Frame& frame, int64_t end) {
  Record* slot = thread.journal.next();
  if (__builtin_expect(slot == nullptr, 0)) {
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

// At level access: writes the operator's accesses before its own record. For filtered operators,
// writes only the storages they allocate.
[[gnu::noinline]] inline void write_touched(Thread& thread, const Frame& frame,
                                            const at::RecordFunction& function, bool left_out) {
  if (frame.op->births) {
    for (const c10::IValue& output : outputs_of(*frame.op, function)) {
      each_tensor(output, [&](const c10::TensorImpl& tensor) {
        note_result(thread, tensor, frame.accesses, frame.births);
      });
    }
  }
  if (left_out) {
    keep_births(thread, frame.accesses);
  }
  if (thread.accesses.size() > frame.accesses) {
    // Inside another operator the next record belongs to that one, or to one that it called.
    const bool apart = left_out && !thread.frames.within_operator();
    write_accesses(thread, frame.accesses, apart ? thread.clock.now() : 0);
  }
}

// Undoes the changes that the start of a frame made to its thread.
class Closing {
 public:
  Closing(Thread& thread, const Frame& frame) : thread_(thread), frame_(frame) {}
  Closing(const Closing&) = delete;
  Closing& operator=(const Closing&) = delete;

  ~Closing() {
    if (__builtin_expect(frame_.collective, 0)) {
      forget_call(thread_);
    }
    if (frame_.opened) {
      thread_.pop_open(frame_.open_level);
      --thread_.depth;
    }
    if (frame_.mutes) {
      --thread_.muted;
    }
    if (frame_.values) {
      thread_.values->busy = false;
    }
    if (__builtin_expect(frame_.blind, 0)) {
      end_blind(thread_);
    }
    if (frame_.collective) {
      drop_call(thread_);
    }
    if (thread_.accesses.size() > frame_.accesses) {
      thread_.accesses.resize(frame_.accesses);
    }
  }

 private:
  Thread& thread_;
  const Frame& frame_;
};

inline void end_frame(Thread& thread, const Frame& frame, const at::RecordFunction& function) {
  const int64_t end = frame.opened ? thread.clock.now() : 0;
  const Closing closing(thread, frame);
  if (frame.mutes) {
    return;
  }
  bool left_out = frame.silent;
  if (frame.op != nullptr) {
    if (!left_out && end - frame.start < recording.minimum_ns) {
      thread.counters.add(Counters::SHORTER);
      left_out = true;
    }
    if (recording.access) {
      write_touched(thread, frame, function, left_out);
      if (__builtin_expect(frame.averaged >= 0, 0) && !left_out) {
        note_empty_mean(thread, frame, function);
      }
      if (__builtin_expect(frame.factor != 0, 0) && !left_out) {
        note_value(thread, frame, layout::BLEND_FACTOR, frame.factor);
      }
      if (__builtin_expect(frame.wrapped != 0, 0) && !left_out) {
        note_value(thread, frame, layout::WRAPPED_BYTES, frame.wrapped);
      }
    }
    if (frame.values) {
      end_values(thread, frame, function, left_out);
    }
  }
  fault_at(Fault::WRITE);
  if (!left_out) {
    write_event(thread, frame, end);
  }
  if (frame.collective) {
    end_call(thread, frame, end);
  }
}

}  // namespace lanescope
