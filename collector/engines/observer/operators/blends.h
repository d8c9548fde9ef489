// Reads the weights with which operators add tensors: those of moving averages.
#pragma once

#include <ATen/core/ivalue.h>

#include "base/recording_state.h"
#include "numerics/fingerprint.h"
#include "numerics/signature.h"
#include "numerics/tensor_memory.h"
#include "operators/inputs.h"

namespace lanescope {

// Returns a Python number that was passed, if it is between 0 and 1; else 0.
inline double share_of(const c10::IValue& value) {
  double number = 0;
  if (value.isDouble()) {
    number = value.toDouble();
  } else if (value.isTensor() && value.toTensor().defined()) {
    const c10::TensorImpl& tensor = *value.toTensor().unsafeGetTensorImpl();
    if (!tensor.is_wrapped_number() || dtype_of(tensor) != c10::ScalarType::Double ||
        !can_read(tensor)) {
      return 0;
    }
    number = *reinterpret_cast<const double*>(first_of(tensor));
  }
  return number > 0 && number < 1 ? number : 0;
}

// Returns the weight of a call, at the steps 0, 1, 2, 4, 8, ...; 0: it has none.
inline double factor_of(const Inputs& inputs) {
  if (!at_doubling_step()) {
    return 0;
  }
  for (const c10::IValue& value : inputs.values) {
    const double share = share_of(value);
    if (share != 0) {
      return share;
    }
  }
  return 0;
}

}  // namespace lanescope
