// Counts whole numbers of 8 bits that go past the last one and begin again at the first.
#pragma once

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/recording_state.h"
#include "numerics/fingerprint.h"
#include "numerics/signature.h"
#include "numerics/tensor_memory.h"
#include "operators/inputs.h"

namespace lanescope {

constexpr int64_t MAX_WRAPPED = 1024;  // elements that are looked at, evenly spaced

inline bool is_of_bytes(c10::ScalarType type) {
  return type == c10::ScalarType::Byte || type == c10::ScalarType::Char;
}

// Returns the tensor that was passed; null: none was.
inline const c10::TensorImpl* tensor_of(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() ? value.toTensor().unsafeGetTensorImpl()
                                                        : nullptr;
}

// True if the elements of a tensor can be read in their order.
inline bool is_readable(const c10::TensorImpl& tensor) {
  return can_read(tensor) && tensor.numel() > 0 && tensor.is_non_overlapping_and_dense();
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

// -1 fits as well: 255 is a label that losses ignore.
inline bool fits(double number, c10::ScalarType type) {
  const bool is_signed = type == c10::ScalarType::Char;
  return number > (is_signed ? -129 : -2) && number < (is_signed ? 128 : 256);
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
inline double cast_past(const c10::TensorImpl& given, const c10::IValue& wanted) {
  const auto type =
      wanted.isInt() ? static_cast<c10::ScalarType>(wanted.toInt()) : c10::ScalarType::Undefined;
  const c10::ScalarType from = dtype_of(given);
  if (!is_of_bytes(type) || is_of_bytes(from) || !is_readable(given)) {
    return 0;
  }
  return share_past(given.numel(), type, [&](int64_t i) { return element_of(given, from, i); });
}

// Of a sum, difference or product of bytes.
inline double result_past(char how, const c10::TensorImpl& first, const c10::TensorImpl& second) {
  const c10::ScalarType type = dtype_of(first), other = dtype_of(second);
  if (!is_of_bytes(type) || !is_readable(first) || !is_readable(second)) {
    return 0;
  }
  const bool single = second.dim() == 0;
  if (single ? other != c10::ScalarType::Long && other != type
             : other != type || second.sizes() != first.sizes() ||
                   second.strides() != first.strides()) {
    return 0;
  }
  return share_past(first.numel(), type, [&](int64_t i) {
    const double a = element_of(first, type, i), b = element_of(second, other, single ? 0 : i);
    return how == '+' ? a + b : how == '-' ? a - b : a * b;
  });
}

// Returns the share of elements of the result of a call that begin again, at the steps 0, 1, 2, 4,
// 8, ...
inline double wrapped(const Operator& op, const Inputs& inputs) {
  if (!at_doubling_step() || inputs.values.size() < 2) {
    return 0;
  }
  const c10::TensorImpl* first = tensor_of(inputs.values[0]);
  if (first == nullptr) {
    return 0;
  }
  if (op.wraps == 'c') {
    return cast_past(*first, inputs.values[1]);
  }
  const c10::TensorImpl* second = tensor_of(inputs.values[1]);
  return second != nullptr ? result_past(op.wraps, *first, *second) : 0;
}

}  // namespace lanescope
