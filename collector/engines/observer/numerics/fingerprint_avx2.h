// Passes over a block with AVX2: hash and sums at once, 8 words at a time.
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "numerics/dtype_traits.h"

namespace lanescope {

namespace {

constexpr int64_t STEP = 8;  // words that `multiply` takes at once

// The low halves of odd words, repeated in the positions of even ones, where the multiplication is.
struct Weights {
  uint32_t low[BLOCK]{}, odd[BLOCK]{}, high[BLOCK]{};
  constexpr Weights() {
    for (int64_t i = 0; i < BLOCK; ++i) {
      low[i] = static_cast<uint32_t>(weight_of(i));
      odd[i] = static_cast<uint32_t>(weight_of(i | 1));
      high[i] = static_cast<uint32_t>(weight_of(i) >> 32);
    }
  }
};
alignas(64) constexpr Weights WEIGHTS;

struct Products {
  __m256i even = _mm256_setzero_si256(), odd = even, high = even;

  // Adds words; the first is the i-th of the block.
  void add(__m256i words, int64_t i) {
    const auto weights = [&](const uint32_t* of) {
      return _mm256_load_si256(reinterpret_cast<const __m256i*>(of + i));
    };
    const __m256i v = _mm256_xor_si256(words, _mm256_srli_epi32(words, 16));
    const __m256i next = _mm256_shuffle_epi32(v, 0xF5);
    even = _mm256_add_epi64(even, _mm256_mul_epu32(v, weights(WEIGHTS.low)));
    odd = _mm256_add_epi64(odd, _mm256_mul_epu32(next, weights(WEIGHTS.odd)));
    high = _mm256_add_epi32(high, _mm256_mullo_epi32(v, weights(WEIGHTS.high)));
  }

  uint64_t sum() const {
    uint64_t low_lanes[4], result = 0;
    uint32_t high_lanes[8], upper = 0;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(low_lanes), _mm256_add_epi64(even, odd));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(high_lanes), high);
    for (const uint64_t lane : low_lanes) {
      result += lane;
    }
    for (const uint32_t lane : high_lanes) {
      upper += lane;
    }
    return result + (static_cast<uint64_t>(upper) << 32);
  }
};

inline __m256i words_of(const uint32_t* raw) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(raw));
}
inline __m256i words_of(const uint16_t* raw) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(raw)));
}
inline __m256i words_of(const uint8_t* raw) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(raw)));
}

// Eight numbers of a dtype that floats represent exactly.
inline __m256 floats(Plain<float>, const float* raw, __m256i) {
  return _mm256_loadu_ps(raw);
}
inline __m256 floats(Bfloat, const uint16_t*, __m256i words) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}
inline __m256 floats(Half, const uint16_t* raw, __m256i) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(raw)));
}
inline __m256 floats(Plain<uint8_t, float>, const uint8_t*, __m256i words) {
  return _mm256_cvtepi32_ps(words);
}
inline __m256 floats(Plain<uint16_t, float>, const uint16_t*, __m256i words) {
  return _mm256_cvtepi32_ps(words);
}
inline __m256 floats(Plain<int8_t, float>, const int8_t*, __m256i words) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 24), 24));
}
inline __m256 floats(Plain<int16_t, float>, const int16_t*, __m256i words) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 16), 16));
}

// Four of them as doubles; reads memory again where that is cheaper than splitting a register.
inline __m256d wide(const float* raw, __m256, int half) {
  return _mm256_cvtps_pd(_mm_loadu_ps(raw + 4 * half));
}
template <typename Raw>
__m256d wide(const Raw*, __m256 x, int half) {
  return _mm256_cvtps_pd(half == 0 ? _mm256_castps256_ps128(x) : _mm256_extractf128_ps(x, 1));
}

// Four numbers of a dtype that needs doubles, from words of eight or four bytes.
inline __m256d doubles(Plain<double>, __m256i words) {
  return _mm256_castsi256_pd(words);
}
inline __m256d doubles(Plain<int32_t, double>, __m128i words) {
  return _mm256_cvtepi32_pd(words);
}
inline __m256d doubles(Plain<uint32_t, double>, __m128i words) {
  const __m128i moved = _mm_xor_si128(words, _mm_set1_epi32(INT32_MIN));
  return _mm256_add_pd(_mm256_cvtepi32_pd(moved), _mm256_set1_pd(0x1p31));
}

// For 64 bits: the upper and lower 32 become the last bits of a double each, so that only their sum
// is rounded.
inline __m256d joined(__m256i words, __m256i upper, double base) {
  const __m256i lower =
      _mm256_blend_epi32(words, _mm256_castpd_si256(_mm256_set1_pd(0x1p52)), 0xAA);
  const __m256d exact = _mm256_sub_pd(_mm256_castsi256_pd(upper), _mm256_set1_pd(base + 0x1p52));
  return _mm256_add_pd(exact, _mm256_castsi256_pd(lower));
}
inline __m256d doubles(Plain<uint64_t, double>, __m256i words) {
  const __m256i base = _mm256_castpd_si256(_mm256_set1_pd(0x1p84));
  return joined(words, _mm256_or_si256(_mm256_srli_epi64(words, 32), base), 0x1p84);
}
inline __m256d doubles(Plain<int64_t, double>, __m256i words) {
  const __m256i base = _mm256_castpd_si256(_mm256_set1_pd(0x1p84 + 0x1p63));
  return joined(words, _mm256_xor_si256(_mm256_srli_epi64(words, 32), base), 0x1p84 + 0x1p63);
}

struct Totals {
  __m256d total0 = _mm256_setzero_pd(), total1 = total0, squares0 = total0, squares1 = total0;

  void store(Part& part) const {
    _mm256_storeu_pd(part.total, total0);
    _mm256_storeu_pd(part.total + 4, total1);
    _mm256_storeu_pd(part.squares, squares0);
    _mm256_storeu_pd(part.squares + 4, squares1);
  }
};

template <typename Number, int COUNT>
void store_extremes(Part& part, const Number (&low)[COUNT], const Number (&high)[COUNT]) {
  part.low = low[0];
  part.high = high[0];
  for (int j = 1; j < COUNT; ++j) {
    part.low = low[j] < part.low ? low[j] : part.low;
    part.high = high[j] > part.high ? high[j] : part.high;
  }
}

// Eight numbers at a time. A double holds the square of a float exactly, so a fused multiply-add
// changes no bit.
struct FloatSums : Totals {
  __m256 low = _mm256_set1_ps(__builtin_inff()), high = _mm256_set1_ps(-__builtin_inff());
  __m256i zeros = _mm256_setzero_si256();

  template <typename Format>
  void add(Format format, const typename Format::Raw* raw, __m256i words) {
    const __m256 x = floats(format, raw, words);
    const __m256d a = wide(raw, x, 0), b = wide(raw, x, 1);
    total0 = _mm256_add_pd(total0, a);
    total1 = _mm256_add_pd(total1, b);
    squares0 = _mm256_fmadd_pd(a, a, squares0);
    squares1 = _mm256_fmadd_pd(b, b, squares1);
    low = _mm256_min_ps(x, low);
    high = _mm256_max_ps(x, high);
    const __m256 none = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_EQ_OQ);
    zeros = _mm256_sub_epi32(zeros, _mm256_castps_si256(none));
  }
  void store(Part& part) const {
    Totals::store(part);
    float lows[8], highs[8];
    int32_t counts[8];
    _mm256_storeu_ps(lows, low);
    _mm256_storeu_ps(highs, high);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(counts), zeros);
    store_extremes(part, lows, highs);
    part.zeros = 0;
    for (const int32_t count : counts) {
      part.zeros += count;
    }
  }
};

struct DoubleSums : Totals {
  __m256d low = _mm256_set1_pd(INFINITE), high = _mm256_set1_pd(-INFINITE);
  __m256i zeros = _mm256_setzero_si256();

  void add(__m256d a, __m256d b) {
    total0 = _mm256_add_pd(total0, a);
    total1 = _mm256_add_pd(total1, b);
    squares0 = _mm256_add_pd(squares0, _mm256_mul_pd(a, a));
    squares1 = _mm256_add_pd(squares1, _mm256_mul_pd(b, b));
    compare(a);
    compare(b);
  }
  void compare(__m256d x) {
    low = _mm256_min_pd(x, low);
    high = _mm256_max_pd(x, high);
    const __m256d none = _mm256_cmp_pd(x, _mm256_setzero_pd(), _CMP_EQ_OQ);
    zeros = _mm256_sub_epi64(zeros, _mm256_castpd_si256(none));
  }
  void store(Part& part) const {
    Totals::store(part);
    double lows[4], highs[4];
    int64_t counts[4];
    _mm256_storeu_pd(lows, low);
    _mm256_storeu_pd(highs, high);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(counts), zeros);
    store_extremes(part, lows, highs);
    part.zeros = counts[0] + counts[1] + counts[2] + counts[3];
  }
};

// The sums of a format's numbers.
template <typename Number>
using SumsOf = std::conditional_t<std::is_same_v<Number, double>, DoubleSums, FloatSums>;

// Returns the weighted sum of the first `count` words of a block.
template <typename Word>
uint64_t multiply(const Word* words, int64_t count, int64_t ahead) {
  Products products;
  for (int64_t i = 0; i < count; i += STEP) {
    fetch(words + i, ahead);
    products.add(words_of(words + i), i);
  }
  return products.sum();
}

// The same, and sums the numbers into `part`. `count` is a multiple of LANES.
template <typename Format>
uint64_t pass(Part& part, const typename Format::Raw* raw, int64_t count, int64_t ahead) {
  using Raw = typename Format::Raw;
  const auto* words = reinterpret_cast<const Word<Raw>*>(raw);
  Products products;
  SumsOf<typename Format::Number> sums;
  for (int64_t i = 0; i < count; i += LANES) {
    fetch(raw + i, ahead);
    if constexpr (sizeof(Raw) == 8) {
      const __m256i first = words_of(words + 2 * i), second = words_of(words + 2 * i + 8);
      products.add(first, 2 * i);
      products.add(second, 2 * i + 8);
      sums.add(doubles(Format{}, first), doubles(Format{}, second));
    } else {
      const __m256i eight = words_of(words + i);
      products.add(eight, i);
      if constexpr (sizeof(typename Format::Number) == 4) {
        sums.add(Format{}, raw + i, eight);
      } else {
        sums.add(doubles(Format{}, _mm256_castsi256_si128(eight)),
                 doubles(Format{}, _mm256_extracti128_si256(eight, 1)));
      }
    }
  }
  sums.store(part);
  return products.sum();
}

}  // namespace

}  // namespace lanescope
