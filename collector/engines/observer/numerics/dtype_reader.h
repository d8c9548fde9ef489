// Maps torch's dtypes to how their elements are read.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>

#include "numerics/fingerprint_kernel.h"

namespace lanescope {

namespace {

template <typename Float>
const float* numbers_of() {
  static const auto table = [] {
    std::array<float, 256> numbers{};
    for (int i = 0; i < 256; ++i) {
      numbers[i] = static_cast<float>(Float(static_cast<uint8_t>(i), Float::from_bits()));
    }
    return numbers;
  }();
  return table.data();
}

// How elements of a dtype are read; a complex element is two numbers.
struct Reading {
  Element element = Element::single;
  int numbers = 0;  // 0: the dtype has no fingerprint
  const float* table = nullptr;
};

Reading reading_of(c10::ScalarType type) {
  using c10::ScalarType;
  switch (type) {
    case ScalarType::Bool:
    case ScalarType::Byte:
      return {Element::uint8, 1};
    case ScalarType::Char:
      return {Element::int8, 1};
    case ScalarType::UInt16:
      return {Element::uint16, 1};
    case ScalarType::Short:
      return {Element::int16, 1};
    case ScalarType::UInt32:
      return {Element::uint32, 1};
    case ScalarType::Int:
      return {Element::int32, 1};
    case ScalarType::UInt64:
      return {Element::uint64, 1};
    case ScalarType::Long:
      return {Element::int64, 1};
    case ScalarType::Half:
      return {Element::half, 1};
    case ScalarType::BFloat16:
      return {Element::bfloat, 1};
    case ScalarType::Float:
      return {Element::single, 1};
    case ScalarType::Double:
      return {Element::twofold, 1};
    case ScalarType::ComplexHalf:
      return {Element::half_pair, 1};  // its four bytes are one word
    case ScalarType::ComplexFloat:
      return {Element::single, 2};
    case ScalarType::ComplexDouble:
      return {Element::twofold, 2};
    case ScalarType::Float8_e5m2:
      return {Element::table, 1, numbers_of<c10::Float8_e5m2>()};
    case ScalarType::Float8_e4m3fn:
      return {Element::table, 1, numbers_of<c10::Float8_e4m3fn>()};
    case ScalarType::Float8_e5m2fnuz:
      return {Element::table, 1, numbers_of<c10::Float8_e5m2fnuz>()};
    case ScalarType::Float8_e4m3fnuz:
      return {Element::table, 1, numbers_of<c10::Float8_e4m3fnuz>()};
    default:
      return {};
  }
}

}  // namespace

}  // namespace lanescope
