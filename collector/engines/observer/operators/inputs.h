// The inputs of an operator: its tensors, the arguments that matter, their signature.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "numerics/signature.h"
#include "operators/operators.h"
#include "thread/thread.h"

namespace lanescope {

struct Inputs {
  c10::ArrayRef<const c10::IValue> values;

  // Calls `visit` with the tensors passed by position.
  template <typename Visit>
  void each_named(const Operator& op, Visit&& visit) const {
    for (const Argument& argument : op.arguments) {
      if (argument.named && argument.position < values.size()) {
        each_tensor(values[argument.position], visit);
      }
    }
  }

  template <typename Visit>
  void each(Visit&& visit) const {
    for (const c10::IValue& value : values) {
      each_tensor(value, visit);
    }
  }

  // True if the argument `training` is false.
  bool evaluates(const Operator& op) const {
    const auto position = static_cast<size_t>(op.training);
    return op.training >= 0 && position < values.size() && values[position].isBool() &&
           !values[position].toBool();
  }

  // Returns the random generator that was passed, null without one.
  const c10::GeneratorImpl* generator(const Operator& op) const {
    const auto position = static_cast<size_t>(op.generator);
    return op.generator >= 0 && position < values.size() && values[position].isGenerator()
               ? values[position].toGenerator().unsafeGetGeneratorImpl()
               : nullptr;
  }

  // Returns the argument `device`, null if it was not passed.
  const c10::IValue* device(const Operator& op) const {
    const auto position = static_cast<size_t>(op.device);
    return op.device >= 0 && position < values.size() && values[position].isDevice()
               ? &values[position]
               : nullptr;
  }
};

// A boxed call, such as those of TorchScript, hands on the whole stack of its caller: an operator's
// own inputs and results are the last ones.
inline Inputs inputs_of(const Operator& op, const at::RecordFunction& function) {
  const c10::ArrayRef<const c10::IValue> values = function.inputs();
  const bool stack = op.has_schema && values.size() > op.arity;
  return {stack ? values.slice(values.size() - op.arity) : values};
}

inline c10::ArrayRef<c10::IValue> outputs_of(const Operator& op,
                                             const at::RecordFunction& function) {
  const c10::ArrayRef<c10::IValue> values = function.outputs();
  const bool stack = op.has_schema && values.size() > op.fresh.size();
  return stack ? values.slice(values.size() - op.fresh.size()) : values;
}

// Returns the signature of an operator without tensors passed by position.
[[gnu::noinline]] inline Text other_signature(Thread& thread, const Operator& op,
                                              const Inputs& inputs) {
  Signature signature;
  const c10::IValue* device = inputs.device(op);
  if (!op.has_schema) {
    inputs.each([&](const c10::TensorImpl& tensor) { signature.add(tensor); });
  } else if (device != nullptr) {
    signature.add(device->toDevice());
  }
  return signature.text(thread, [&](Spelling& spelling) {
    if (device != nullptr) {
      spelling.set_device(device->toDevice());
    } else {
      inputs.each([&](const c10::TensorImpl& tensor) { spelling.add(tensor); });
    }
  });
}

// Returns the text of `signature`, which holds the operator's tensors passed by position.
inline Text signature_text(Thread& thread, const Operator& op, const Inputs& inputs,
                           const Signature& signature) {
  if (signature.empty()) {
    return other_signature(thread, op, inputs);
  }
  return signature.text(thread, [&](Spelling& spelling) {
    inputs.each_named(op, [&](const c10::TensorImpl& tensor) { spelling.add(tensor); });
  });
}

}  // namespace lanescope
