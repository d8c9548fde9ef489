#include "operators/tensor_capture.h"

#include <cstring>
#include <string_view>

#include "numerics/signature.h"
#include "numerics/tensor_memory.h"
#include "operators/inputs.h"
#include "operators/operators.h"
#include "storages/storages.h"
#include "thread/thread.h"

namespace lanescope {

namespace {

// Tensors beyond this position are not recorded.
constexpr uint32_t MAX_POSITION = layout::TENSOR_ORDINAL;

constexpr std::string_view OVERWRITING[] = {
    "aten::bernoulli_",     "aten::cauchy_",    "aten::copy_",       "aten::exponential_",
    "aten::fill_",          "aten::geometric_", "aten::log_normal_", "aten::normal_",
    "aten::random_",        "aten::uniform_",   "aten::zero_",       "aten::_foreach_copy_",
    "aten::_foreach_zero_",
};

bool starts(std::string_view text, std::string_view with) {
  return text.substr(0, with.size()) == with;
}

// True for tensors without own memory, or of a class that decomposes the operator: then the inner
// operators are read instead.
bool is_transparent(const c10::TensorImpl& tensor) {
  return !tensor.has_storage() || is_of_python(tensor);
}

// True for tensors that torch.func wraps: kernels work on the inner ones without being dispatched.
bool is_transformed(const c10::TensorImpl& tensor) {
  return tensor.key_set().has_any(c10::DispatchKeySet(
      {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper}));
}

// Counts a tensor without memory as not read: operators on its parts may or may not be observed.
// Subclasses and wrapped tensors are not counted, as their inner tensors are read.
void count_if_bare(Thread& thread, const c10::TensorImpl& tensor) {
  if (!tensor.has_storage() && !is_of_python(tensor) && !is_transformed(tensor)) {
    thread.counters.add(Counters::UNREAD);
  }
}

template <typename Visit>
void each_argument(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, Visit&& visit) {
  uint32_t position = 0;
  for (const Argument& argument : op.arguments) {
    if (argument.position >= inputs.size()) {
      return;
    }
    each_tensor(inputs[argument.position],
                [&](const c10::TensorImpl& tensor) { visit(tensor, argument, position++); });
  }
}

void add_row(Thread& thread, const c10::TensorImpl& tensor, const Fingerprint& fingerprint,
             uint32_t position, uint32_t flags, const Storages::Found* found) {
  if (position > MAX_POSITION) {
    thread.counters.add(Counters::UNREAD);
    return;
  }
  Signature signature;
  signature.add(tensor);
  const Text text = signature.text(thread, [&](Spelling& spelling) { spelling.add(tensor); });
  const bool unexpected = found != nullptr && found->state == Storages::Found::changed;
  thread.values->rows.push_back({fingerprint, unexpected ? found->expected : 0, text,
                                 static_cast<uint16_t>(position | flags), unexpected});
}

// Checks an input before the operator runs, and reads it if necessary.
void look_at(Thread& thread, const c10::TensorImpl& tensor, uint32_t position, bool always,
             bool writes) {
  Values& values = *thread.values;
  if (!can_read(tensor)) {
    thread.counters.add(Counters::UNREAD);
    values.known = false;
    return;
  }
  if (tensor.numel() == 0) {
    return;
  }
  Storages::Found found = storages().look(tensor);
  if (values.blind != 0 && found.state == Storages::Found::changed) {
    found.state = Storages::Found::known;
    found.finite_known = false;
  }
  if (found.state == Storages::Found::changed && !found.owned && !tensor.requires_grad() &&
      !thread.frames.within(layout::SCOPE_BACKWARD)) {
    found.state = Storages::Found::foreign;  // as a new batch copied to the buffer of the last one
  }
  values.unset = values.unset || found.derived;
  if (found.state == Storages::Found::unset) {
    // The operator may initialise what it changes. What it only reads flows into its results.
    values.unset = values.unset || !writes;
    values.known = false;
    return;
  }
  if (found.state == Storages::Found::known && !always) {
    values.finite = values.finite && (found.finite || !found.finite_known);
    values.known = values.known && found.finite_known;
    return;
  }
  const Fingerprint fingerprint = lanescope::fingerprint(tensor);
  values.finite = values.finite && fingerprint.finite();
  add_row(thread, tensor, fingerprint, position, layout::TENSOR_FOUND, &found);
  storages().read(tensor, fingerprint);
}

// Reads what the operator made or changed, after its end.
void read_result(Thread& thread, const c10::TensorImpl& tensor, uint32_t position, uint32_t flags) {
  if (!can_read(tensor)) {
    thread.counters.add(Counters::UNREAD);
    storages().wrote_unread(tensor);
    return;
  }
  const Fingerprint fingerprint = lanescope::fingerprint(tensor);
  add_row(thread, tensor, fingerprint, position, flags, nullptr);
  storages().wrote(tensor, fingerprint, thread.values->unset);
  if (thread.values->blind != 0) {
    storages().wrote_unread(tensor);
  }
}

void write_row(Thread& thread, const Frame& frame, const Values::Row& row) {
  Record* slot = thread.journal.next();
  if (slot == nullptr) {
    thread.note_lost();
    return;
  }
  const Values& values = *thread.values;
  const Fingerprint& of = row.fingerprint;
  const bool unset = values.unset && (row.position & layout::TENSOR_FOUND) == 0;
  const bool more = !of.finite() || row.unexpected || unset;
  TensorRecord record{};
  record.depth = static_cast<uint8_t>(frame.depth < 255 ? frame.depth : 255);
  record.position = row.position;
  if (!values.finite || values.known) {
    record.position |= layout::TENSOR_KNOWN | (values.finite ? layout::TENSOR_FINITE : 0);
  }
  record.position |= more ? layout::TENSOR_MORE : 0;
  record.signature = row.signature;
  record.start = frame.start;
  record.hash = static_cast<int64_t>(of.hash);
  record.zeros = of.zeros;
  record.mean = of.mean;
  record.l2 = of.l2;
  record.low = of.low;
  record.high = of.high;
  std::memcpy(reinterpret_cast<char*>(slot) + 1, reinterpret_cast<const char*>(&record) + 1,
              sizeof record - 1);
  thread.journal.publish(layout::KIND_TENSOR);
  if (!more) {
    return;
  }
  slot = thread.journal.next();
  if (slot == nullptr) {
    thread.note_lost();
    return;
  }
  TensorMoreRecord rest{};
  rest.expects = row.unexpected;
  rest.unset = unset;
  rest.nan = of.nan;
  rest.inf = of.inf;
  rest.expected = static_cast<int64_t>(row.expected);
  std::memcpy(reinterpret_cast<char*>(slot) + 1, reinterpret_cast<const char*>(&rest) + 1,
              sizeof rest - 1);
  thread.journal.publish(layout::KIND_TENSOR_MORE);
}

// Calls `visit` with the results that are neither views nor inputs.
template <typename Visit>
void each_result(const Operator& op, const at::RecordFunction& function, Visit&& visit) {
  const c10::ArrayRef<c10::IValue> outputs = outputs_of(op, function);
  uint32_t position = 0;
  for (size_t i = 0; i < outputs.size() && i < op.fresh.size(); ++i) {
    each_tensor(outputs[i], [&](const c10::TensorImpl& tensor) {
      if (op.fresh[i] && !(op.workspace && tensor.dtype() == caffe2::TypeMeta::Make<uint8_t>())) {
        visit(tensor, position);
      }
      ++position;
    });
  }
}

}  // namespace

void Values::clear() {
  finite = known = true;
  unset = false;
  rows.clear();
  written.clear();
}

Reads reads_of(const std::string& name, bool collective) {
  if (collective) {
    return Reads::collective;
  }
  if (starts(name, "c10d::") || starts(name, "_c10d_functional::") || starts(name, "aten::empty") ||
      starts(name, "aten::new_empty") || starts(name, "aten::_empty") ||
      starts(name, "aten::resize")) {
    return Reads::nothing;
  }
  for (const std::string_view overwriting : OVERWRITING) {
    if (name == overwriting) {
      return Reads::results;
    }
  }
  return Reads::all;
}

void begin_values(Thread& thread, Frame& frame, c10::ArrayRef<const c10::IValue> inputs) {
  const Operator& op = *frame.op;
  if (thread.values == nullptr) {
    thread.values = std::make_unique<Values>();
  }
  Values& values = *thread.values;
  if (values.busy || op.composite) {
    return;
  }
  if (op.scope == layout::SCOPE_COMPILED) {
    begin_blind(thread, frame);
  }
  if (!op.has_schema) {
    return;
  }
  bool transparent = false, transformed = false;
  each_argument(op, inputs, [&](const c10::TensorImpl& tensor, const Argument&, uint32_t) {
    transparent = transparent || is_transparent(tensor);
    transformed = transformed || is_transformed(tensor);
    count_if_bare(thread, tensor);
  });
  if (transformed && values.blind == 0) {
    begin_blind(thread, frame);
  }
  if (transparent) {
    return;
  }
  values.clear();
  values.busy = frame.values = true;
  each_argument(
      op, inputs, [&](const c10::TensorImpl& tensor, const Argument& argument, uint32_t position) {
        const bool collective = op.reads == Reads::collective;
        const bool asked = op.reads == Reads::all || collective ||
                           (op.reads == Reads::results && !argument.writes);
        const bool only_written = argument.writes && !argument.reads && !argument.named;
        if (asked && op.wanted && !only_written && (argument.reads || argument.writes) &&
            !(collective && (!argument.reads || storages().awaited(tensor)))) {
          look_at(thread, tensor, position, collective, argument.writes);
        }
        if (!argument.writes) {
          return;
        }
        if (collective) {
          storages().awaits(tensor);
          return;
        }
        storages().writes(tensor);
        auto* written = const_cast<c10::TensorImpl*>(&tensor);
        c10::raw::weak_intrusive_ptr::incref(written);
        values.written.push_back({c10::weak_intrusive_ptr<c10::TensorImpl>::reclaim(written),
                                  static_cast<uint16_t>(std::min(position, MAX_POSITION + 1))});
      });
}

void end_values(Thread& thread, const Frame& frame, const at::RecordFunction& function,
                bool left_out) {
  Values& values = *thread.values;
  const Operator& op = *frame.op;
  const bool unread = left_out || op.reads == Reads::nothing;
  each_result(op, function, [&](const c10::TensorImpl& tensor, uint32_t position) {
    if (op.reads == Reads::collective) {
      storages().awaits(tensor);
    } else if (op.reads == Reads::nothing) {
      storages().made_unset(tensor);
    } else if (left_out) {
      storages().made_unread(tensor);
    } else if (is_transparent(tensor)) {
      count_if_bare(thread, tensor);
    } else {
      read_result(thread, tensor, position, layout::TENSOR_RESULT);
    }
  });
  for (const Values::Written& one : values.written) {
    if (one.tensor.use_count() == 0) {
      continue;
    }
    // The operator's caller holds it. Taking a reference could require Python's lock.
    const c10::TensorImpl& tensor = *one.tensor._unsafe_get_target();
    if (unread) {
      storages().wrote_unread(tensor);
    } else {
      read_result(thread, tensor, one.position, 0);
    }
  }
  if (!left_out) {
    for (const Values::Row& row : values.rows) {
      write_row(thread, frame, row);
    }
  }
  values.clear();
}

void begin_blind(Thread& thread, Frame& frame) {
  if (thread.values == nullptr) {
    thread.values = std::make_unique<Values>();
  }
  frame.blind = true;
  ++thread.values->blind;
}

void end_blind(Thread& thread) {
  if (thread.values != nullptr &&
      thread.values->blind != 0) {  // else it belongs to an earlier recording
    --thread.values->blind;
  }
  storages().distrust();
}

void forget_values() {
  storages().clear();
}

}  // namespace lanescope
