// Passes over a block with AVX-512 and its products of 52 bits: hash and sums at once, 16 words at
// a time.
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "numerics/dtype_traits.h"

namespace lanescope {

namespace {

constexpr int64_t STEP = 8;  // words in the last step of `multiply`

// A weight is low + 2^20 * high: a word times the 20 bits of `low` is exact in 52 bits, and only
// the last 44 bits of the product with `high` count. Even and odd words are multiplied separately.
struct alignas(64) Weights {
  struct Sixteen {
    uint64_t low_even[8], high_even[8], low_odd[8], high_odd[8];
  } of[BLOCK / 16]{};
  constexpr Weights() {
    for (int64_t i = 0; i < BLOCK; i += 2) {
      Sixteen& here = of[i / 16];
      here.low_even[i % 16 / 2] = weight_of(i) & 0xFFFFF;
      here.high_even[i % 16 / 2] = weight_of(i) >> 20;
      here.low_odd[i % 16 / 2] = weight_of(i + 1) & 0xFFFFF;
      here.high_odd[i % 16 / 2] = weight_of(i + 1) >> 20;
    }
  }
};
constexpr Weights WEIGHTS;

struct Products {
  __m512i low = _mm512_setzero_si512(), high = low, low_odd = low, high_odd = low;

  // Adds words; the first is the i-th of the block.
  void add(__m512i words, int64_t i) {
    const Weights::Sixteen& weights = WEIGHTS.of[i / 16];
    const __m512i v = _mm512_xor_si512(words, _mm512_srli_epi32(words, 16));
    const __m512i even = _mm512_maskz_mov_epi32(0x5555, v), odd = _mm512_srli_epi64(v, 32);
    low = _mm512_madd52lo_epu64(low, even, _mm512_load_si512(weights.low_even));
    high = _mm512_madd52lo_epu64(high, even, _mm512_load_si512(weights.high_even));
    low_odd = _mm512_madd52lo_epu64(low_odd, odd, _mm512_load_si512(weights.low_odd));
    high_odd = _mm512_madd52lo_epu64(high_odd, odd, _mm512_load_si512(weights.high_odd));
  }
  uint64_t sum() const {
    return static_cast<uint64_t>(_mm512_reduce_add_epi64(_mm512_add_epi64(low, low_odd))) +
           (static_cast<uint64_t>(_mm512_reduce_add_epi64(_mm512_add_epi64(high, high_odd))) << 20);
  }
};

// The last eight words of a block may be half a step: the other half is 0.
template <bool HALF>
__m512i words_of(const uint32_t* raw) {
  return HALF ? _mm512_maskz_loadu_epi32(0xFF, raw) : _mm512_loadu_si512(raw);
}
template <bool HALF>
__m512i words_of(const uint16_t* raw) {
  const auto* from = reinterpret_cast<const __m256i*>(raw);
  return _mm512_cvtepu16_epi32(
      HALF ? _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(raw)))
           : _mm256_loadu_si256(from));
}
template <bool HALF>
__m512i words_of(const uint8_t* raw) {
  const auto* from = reinterpret_cast<const __m128i*>(raw);
  return _mm512_cvtepu8_epi32(HALF ? _mm_loadl_epi64(from) : _mm_loadu_si128(from));
}

// Numbers of a dtype that floats represent exactly.
inline __m512 floats(Plain<float>, __m512i words) {
  return _mm512_castsi512_ps(words);
}
inline __m512 floats(Bfloat, __m512i words) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}
inline __m512 floats(Half, __m512i words) {
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
}
inline __m512 floats(Plain<uint8_t, float>, __m512i words) {
  return _mm512_cvtepi32_ps(words);
}
inline __m512 floats(Plain<uint16_t, float>, __m512i words) {
  return _mm512_cvtepi32_ps(words);
}
inline __m512 floats(Plain<int8_t, float>, __m512i words) {
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(words, 24), 24));
}
inline __m512 floats(Plain<int16_t, float>, __m512i words) {
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(words, 16), 16));
}

// Eight of them as doubles; reads memory again where that is cheaper than splitting a register.
inline __m512d wide(const float* raw, __m512, int half) {
  return _mm512_cvtps_pd(_mm256_loadu_ps(raw + 8 * half));
}
template <typename Raw>
__m512d wide(const Raw*, __m512 x, int half) {
  return _mm512_cvtps_pd(half == 0 ? _mm512_castps512_ps256(x) : _mm512_extractf32x8_ps(x, 1));
}

// Eight numbers of a dtype that needs doubles, from words of eight or four bytes.
inline __m512d doubles(Plain<double>, __m512i words) {
  return _mm512_castsi512_pd(words);
}
inline __m512d doubles(Plain<int64_t, double>, __m512i words) {
  return _mm512_cvtepi64_pd(words);
}
inline __m512d doubles(Plain<uint64_t, double>, __m512i words) {
  return _mm512_cvtepu64_pd(words);
}
inline __m512d doubles(Plain<int32_t, double>, __m256i words) {
  return _mm512_cvtepi32_pd(words);
}
inline __m512d doubles(Plain<uint32_t, double>, __m256i words) {
  return _mm512_cvtepu32_pd(words);
}

// A double holds the square of a float exactly, so a fused multiply-add changes no bit.
struct FloatSums {
  __m512d total = _mm512_setzero_pd(), squares = total;
  __m512 low = _mm512_set1_ps(__builtin_inff()), high = _mm512_set1_ps(-__builtin_inff());
  __m512i zeros = _mm512_setzero_si512();

  template <bool HALF, typename Format>
  void add(Format format, const typename Format::Raw* raw, __m512i words) {
    constexpr __mmask16 there = HALF ? 0xFF : 0xFFFF;
    const __m512 x = floats(format, words);
    add(wide(raw, x, 0));
    if constexpr (!HALF) {
      add(wide(raw, x, 1));
    }
    low = _mm512_mask_min_ps(low, there, x, low);
    high = _mm512_mask_max_ps(high, there, x, high);
    const __mmask16 none = _mm512_mask_cmp_ps_mask(there, x, _mm512_setzero_ps(), _CMP_EQ_OQ);
    zeros = _mm512_mask_sub_epi32(zeros, none, zeros, _mm512_set1_epi32(-1));
  }
  void add(__m512d x) {
    total = _mm512_add_pd(total, x);
    squares = _mm512_fmadd_pd(x, x, squares);
  }
  void store(Part& part) const {
    _mm512_storeu_pd(part.total, total);
    _mm512_storeu_pd(part.squares, squares);
    part.low = _mm512_reduce_min_ps(low);
    part.high = _mm512_reduce_max_ps(high);
    part.zeros = _mm512_reduce_add_epi32(zeros);
  }
};

struct DoubleSums {
  __m512d total = _mm512_setzero_pd(), squares = total;
  __m512d low = _mm512_set1_pd(INFINITE), high = _mm512_set1_pd(-INFINITE);
  __m512i zeros = _mm512_setzero_si512();

  void add(__m512d x) {
    total = _mm512_add_pd(total, x);
    squares = _mm512_add_pd(squares, _mm512_mul_pd(x, x));
    low = _mm512_min_pd(x, low);
    high = _mm512_max_pd(x, high);
    const __mmask8 none = _mm512_cmp_pd_mask(x, _mm512_setzero_pd(), _CMP_EQ_OQ);
    zeros = _mm512_mask_sub_epi64(zeros, none, zeros, _mm512_set1_epi64(-1));
  }
  void store(Part& part) const {
    _mm512_storeu_pd(part.total, total);
    _mm512_storeu_pd(part.squares, squares);
    part.low = _mm512_reduce_min_pd(low);
    part.high = _mm512_reduce_max_pd(high);
    part.zeros = _mm512_reduce_add_epi64(zeros);
  }
};

// The sums of a format's numbers.
template <typename Number>
using SumsOf = std::conditional_t<std::is_same_v<Number, double>, DoubleSums, FloatSums>;

// Returns the weighted sum of the first `count` words of a block.
template <typename Word>
uint64_t multiply(const Word* words, int64_t count, int64_t ahead) {
  Products products;
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    fetch(words + i, ahead);
    products.add(words_of<false>(words + i), i);
  }
  if (i < count) {
    products.add(words_of<true>(words + i), i);
  }
  return products.sum();
}

template <bool HALF, typename Format, typename Sums>
void add_step(Products& products, Sums& sums, const typename Format::Raw* raw, int64_t i) {
  using Raw = typename Format::Raw;
  const auto* words = reinterpret_cast<const Word<Raw>*>(raw);
  const __m512i sixteen = words_of<HALF>(words + i * WORDS<Raw>);
  products.add(sixteen, i * WORDS<Raw>);
  if constexpr (sizeof(Raw) == 8) {
    sums.add(doubles(Format{}, sixteen));
  } else if constexpr (sizeof(typename Format::Number) == 4) {
    sums.template add<HALF>(Format{}, raw + i, sixteen);
  } else {
    sums.add(doubles(Format{}, _mm512_castsi512_si256(sixteen)));
    if constexpr (!HALF) {
      sums.add(doubles(Format{}, _mm512_extracti32x8_epi32(sixteen, 1)));
    }
  }
}

// The same, and sums the numbers into `part`. `count` is a multiple of LANES.
template <typename Format>
uint64_t pass(Part& part, const typename Format::Raw* raw, int64_t count, int64_t ahead) {
  using Raw = typename Format::Raw;
  constexpr int64_t NUMBERS = 16 / WORDS<Raw>;
  Products products;
  SumsOf<typename Format::Number> sums;
  int64_t i = 0;
  for (; i + NUMBERS <= count; i += NUMBERS) {
    fetch(raw + i, ahead);
    add_step<false, Format>(products, sums, raw, i);
  }
  if (i < count) {
    add_step<true, Format>(products, sums, raw, i);
  }
  sums.store(part);
  return products.sum();
}

}  // namespace

}  // namespace lanescope
