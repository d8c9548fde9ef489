// How elements of a type are words and numbers, and what one block of them adds up to.
//
// Included by fingerprint_kernel.cpp alone, which is compiled for several processors: all has internal linkage.
#pragma once

#include "numerics/fingerprint_kernel.h"

namespace lanescope {

namespace {

constexpr int LANES = 8;
constexpr double INFINITE = __builtin_inf();

constexpr uint64_t splitmix64(uint64_t k) {
  uint64_t z = (k + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

constexpr uint64_t weight_of(int64_t word) {
  return splitmix64(static_cast<uint64_t>(word)) | 1;
}

// Bytes of any type may begin anywhere.
template <typename Raw>
Raw at(const Raw* raw, int64_t i) {
  Raw one;
  __builtin_memcpy(&one, raw + i, sizeof one);
  return one;
}

float number_of(uint32_t bits) {
  float number;
  __builtin_memcpy(&number, &bits, sizeof number);
  return number;
}

// Elements of the type `Raw`, which the type `Number` holds exactly, or, of 64 bits, rounded.
template <typename Raw_, typename Number_ = Raw_>
struct Plain {
  using Raw = Raw_;
  using Number = Number_;
  static Number number(Raw raw) { return static_cast<Number>(raw); }
};

struct Bfloat {
  using Raw = uint16_t;
  using Number = float;
  static Number number(Raw raw) { return number_of(static_cast<uint32_t>(raw) << 16); }
};

// The exponent is moved by multiplying, which numbers without one of their own take part in.
struct Half {
  using Raw = uint16_t;
  using Number = float;
  static Number number(Raw raw) {
    const uint32_t magnitude = static_cast<uint32_t>(raw & 0x7FFF) << 13;
    const float moved = number_of(magnitude) * number_of(0x77800000u);  // 2^112
    const bool special = (raw & 0x7C00) == 0x7C00;
    uint32_t result;
    __builtin_memcpy(&result, &moved, sizeof result);
    result = special ? magnitude | 0x7F800000u : result;
    return number_of(result | static_cast<uint32_t>(raw & 0x8000) << 16);
  }
};

// A line of the next block, while this one is computed: processors do not look beyond a page of
// 4 KiB by themselves, and would wait for memory at each.
template <typename Raw>
void fetch(const Raw* raw, int64_t ahead) {
  __builtin_prefetch(reinterpret_cast<const char*>(raw) + ahead);
}

// Unsigned words of the hash: of up to four bytes, of which an element has one or more.
template <int BYTES>
struct WordOf {
  using Type = uint32_t;
};
template <>
struct WordOf<1> {
  using Type = uint8_t;
};
template <>
struct WordOf<2> {
  using Type = uint16_t;
};
template <typename Raw>
using Word = typename WordOf<sizeof(Raw)>::Type;
template <typename Raw>
constexpr int64_t WORDS = sizeof(Raw) / sizeof(Word<Raw>);

// What numbers in a block add up to: the i-th of them in the lane i modulo LANES, each lane in
// order. All processors do the same additions of the same rounded products, so the sums have the
// same bits.
struct Part {
  double total[LANES], squares[LANES];
  double low, high;
  int64_t zeros;
};

}  // namespace

}  // namespace lanescope
