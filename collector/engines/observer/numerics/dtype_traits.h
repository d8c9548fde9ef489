// Reads elements of a dtype as words and as numbers, and sums them within a block.
//
// Only fingerprint_kernel.cpp includes this. It is compiled for several processors, so everything
// here has internal linkage.
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

// Loads a value from unaligned bytes.
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

// Elements of the type `Raw`. `Number` holds them exactly; 64-bit integers are rounded.
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

// Multiplication shifts the exponent, which also handles subnormal numbers.
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

// Prefetches a line of the next block: hardware prefetching stops at each 4 KiB page, and the
// processor would wait for memory there.
template <typename Raw>
void fetch(const Raw* raw, int64_t ahead) {
  __builtin_prefetch(reinterpret_cast<const char*>(raw) + ahead);
}

// Unsigned words of the hash, up to four bytes; an element has one or more.
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

// The sums over a block: number i goes to lane i modulo LANES, each lane in order. All processors
// do the same additions of the same rounded products, so the sums are bitwise identical.
struct Part {
  double total[LANES], squares[LANES];
  double low, high;
  int64_t zeros;
};

}  // namespace

}  // namespace lanescope
