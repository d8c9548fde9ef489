// Counts whole numbers of 8 bits that go past the last one and begin again at the first.
#pragma once

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/recording_state.h"
#include "numerics/signature.h"
#include "numerics/tensor_memory.h"
#include "operators/inputs.h"

namespace lanescope {

constexpr int64_t MAX_WRAPPED = 4096;  // elements that are looked at, evenly spaced

// Returns the tensor that was passed, if its elements can be read here; else null.
inline const c10::TensorImpl* readable(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) {
    return nullptr;
  }
  const c10::TensorImpl& tensor = *value.toTensor().unsafeGetTensorImpl();
  const bool plain = !is_of_python(tensor) && tensor.is_cpu() && tensor.has_storage() &&
                     value.toTensor().layout() == c10::kStrided && tensor.numel() > 0 &&
                     tensor.is_non_overlapping_and_dense() &&
                     data_of(tensor.unsafe_storage()) != nullptr;
  return plain ? &tensor : nullptr;
}

inline bool is_of_bytes(c10::ScalarType type) {
  return type == c10::ScalarType::Byte || type == c10::ScalarType::Char;
}

inline double element_of(const c10::TensorImpl& tensor, c10::ScalarType type, int64_t index) {
  const char* first = first_of(tensor);
  switch (type) {
    case c10::ScalarType::Byte:
      return reinterpret_cast<const uint8_t*>(first)[index];
    case c10::ScalarType::Char:
      return reinterpret_cast<const int8_t*>(first)[index];
    case c10::ScalarType::Long:
      return static_cast<double>(reinterpret_cast<const int64_t*>(first)[index]);
    case c10::ScalarType::Float:
      return reinterpret_cast<const float*>(first)[index];
    default:
      return std::numeric_limits<double>::quiet_NaN();
  }
}

inline bool fits(double number, c10::ScalarType type) {
  const bool is_signed = type == c10::ScalarType::Char;
  return number > (is_signed ? -129 : -1) && number < (is_signed ? 128 : 256);
}

// Returns the share of elements for which `made`, given their index, does not fit; NaN fits.
template <typename Made>
double share_past(int64_t elements, c10::ScalarType type, Made&& made) {
  const int64_t apart = std::max<int64_t>(1, elements / MAX_WRAPPED);
  int64_t seen = 0, past = 0;
  for (int64_t i = 0; i < elements; i += apart) {
    const double number = made(i);
    ++seen;
    past += !std::isnan(number) && !fits(number, type);
  }
  return static_cast<double>(past) / static_cast<double>(seen);
}

// Of a cast to bytes.
inline double cast_past(const Inputs& inputs, const c10::TensorImpl& given) {
  if (inputs.values.size() < 2 || !inputs.values[1].isInt()) {
    return 0;
  }
  const auto type = static_cast<c10::ScalarType>(inputs.values[1].toInt());
  const c10::ScalarType from = dtype_of(given);
  if (!is_of_bytes(type) || is_of_bytes(from)) {
    return 0;
  }
  return share_past(given.numel(), type, [&](int64_t i) { return element_of(given, from, i); });
}

// Returns the share of elements of the result of a call that begin again, at the steps 0, 1, 2, 4,
// 8, ...
inline double wrapped(const Operator& op, const Inputs& inputs) {
  const auto step = static_cast<uint32_t>(recording.step.load(std::memory_order_relaxed));
  const c10::TensorImpl* first = inputs.values.empty() || (!std::has_single_bit(step) && step != 0)
                                     ? nullptr
                                     : readable(inputs.values[0]);
  if (first == nullptr) {
    return 0;
  }
  if (op.wraps == 'c') {
    return cast_past(inputs, *first);
  }
  const c10::ScalarType type = dtype_of(*first);
  const c10::TensorImpl* second =
      is_of_bytes(type) && inputs.values.size() > 1 ? readable(inputs.values[1]) : nullptr;
  if (second == nullptr) {
    return 0;
  }
  const c10::ScalarType other = dtype_of(*second);
  const bool single = second->dim() == 0;
  if (single ? other != c10::ScalarType::Long && other != type
             : other != type || second->sizes() != first->sizes() ||
                   second->strides() != first->strides()) {
    return 0;
  }
  return share_past(first->numel(), type, [&](int64_t i) {
    const double a = element_of(*first, type, i);
    const double b = element_of(*second, other, single ? 0 : i);
    return op.wraps == '+' ? a + b : op.wraps == '-' ? a - b : a * b;
  });
}

}  // namespace lanescope
