// Passes over a block with nothing but C++.
#pragma once

#include "numerics/dtype_traits.h"

namespace lanescope {

namespace {

constexpr int64_t STEP = 1;  // words that `multiply` takes at once

// Low and high halves separately: processors multiply 32 by 32 bits.
struct Weights {
  uint32_t low[BLOCK]{}, high[BLOCK]{};
  constexpr Weights() {
    for (int64_t i = 0; i < BLOCK; ++i) {
      low[i] = static_cast<uint32_t>(weight_of(i));
      high[i] = static_cast<uint32_t>(weight_of(i) >> 32);
    }
  }
};
alignas(64) constexpr Weights WEIGHTS;

// Returns the weighted sum of the first `count` words of a block.
template <typename Word>
uint64_t multiply(const Word* words, int64_t count, int64_t) {
  uint64_t low = 0;
  uint32_t high = 0;  // its upper bits would be shifted out of the result
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = at(words, i), folded = word ^ word >> 16;
    low += static_cast<uint64_t>(folded) * WEIGHTS.low[i];
    high += folded * WEIGHTS.high[i];
  }
  return low + (static_cast<uint64_t>(high) << 32);
}

// The same, and sums the numbers into `part`. `count` is a multiple of LANES.
template <typename Format>
uint64_t pass(Part& part, const typename Format::Raw* raw, int64_t count, int64_t ahead) {
  using Number = typename Format::Number;
  using Raw = typename Format::Raw;
  Number low[LANES], high[LANES];
  part = {};
  for (int j = 0; j < LANES; ++j) {
    low[j] = high[j] = Format::number(at(raw, j));
  }
  for (int64_t i = 0; i < count; i += LANES) {
    fetch(raw + i, ahead);
    for (int j = 0; j < LANES; ++j) {
      const Number x = Format::number(at(raw, i + j));
      const auto wide = static_cast<double>(x);
      part.total[j] += wide;
      part.squares[j] += wide * wide;
      part.zeros += x == 0;
      low[j] = x < low[j] ? x : low[j];
      high[j] = x > high[j] ? x : high[j];
    }
  }
  part.low = low[0];
  part.high = high[0];
  for (int j = 1; j < LANES; ++j) {
    part.low = low[j] < part.low ? low[j] : part.low;
    part.high = high[j] > part.high ? high[j] : part.high;
  }
  return multiply(reinterpret_cast<const Word<Raw>*>(raw), count * WORDS<Raw>, 0);
}

}  // namespace

}  // namespace lanescope
