// One pass over the elements: block by block, each of which stays in the nearest cache while hash
// and statistics read it.
//
// The lanes of the sums are fixed, and products are rounded before they are added: with the plain
// loops or the vector instructions, every processor gives the same mean and norm.

#include "kernel.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

#ifndef LANESCOPE_VARIANT
#define LANESCOPE_VARIANT generic
#endif

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

// Low and high halves apart: processors multiply 32 by 32 bits.
struct Weights {
  uint32_t low[BLOCK]{}, high[BLOCK]{};
  constexpr Weights() {
    for (int64_t i = 0; i < BLOCK; ++i) {
      const uint64_t weight = splitmix64(static_cast<uint64_t>(i)) | 1;
      low[i] = static_cast<uint32_t>(weight);
      high[i] = static_cast<uint32_t>(weight >> 32);
    }
  }
};
alignas(64) constexpr Weights WEIGHTS;

// Sums of the products with the low and the high half of the weights.
struct Products {
  uint64_t low;
  uint32_t high;  // its upper bits would be moved out of the result
};

template <typename Word>
Products multiply_plainly(const Word* words, int64_t from, int64_t count, Products sums) {
  for (int64_t i = from; i < count; ++i) {
    Word raw;
    __builtin_memcpy(&raw, words + i, sizeof raw);  // bytes of any type may begin anywhere
    const uint32_t word = raw;
    const uint32_t folded = word ^ word >> 16;
    sums.low += static_cast<uint64_t>(folded) * WEIGHTS.low[i];
    sums.high += folded * WEIGHTS.high[i];
  }
  return sums;
}

#ifdef __AVX2__
inline __m256i eight_of(const uint32_t* words) {
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
  return _mm256_xor_si256(v, _mm256_srli_epi32(v, 16));
}
inline __m256i eight_of(const uint16_t* words) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)));
}
inline __m256i eight_of(const uint8_t* words) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(words)));
}

template <typename Word>
Products multiply(const Word* words, int64_t count) {
  __m256i even = _mm256_setzero_si256(), odd = even, high = even;
  const int64_t whole = count / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    const __m256i v = eight_of(words + i);
    const __m256i w = _mm256_load_si256(reinterpret_cast<const __m256i*>(WEIGHTS.low + i));
    const __m256i h = _mm256_load_si256(reinterpret_cast<const __m256i*>(WEIGHTS.high + i));
    even = _mm256_add_epi64(even, _mm256_mul_epu32(v, w));
    odd = _mm256_add_epi64(
        odd, _mm256_mul_epu32(_mm256_srli_epi64(v, 32), _mm256_srli_epi64(w, 32)));
    high = _mm256_add_epi32(high, _mm256_mullo_epi32(v, h));
  }
  uint64_t low_lanes[4];
  uint32_t high_lanes[8];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(low_lanes), _mm256_add_epi64(even, odd));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(high_lanes), high);
  Products sums{0, 0};
  for (const uint64_t lane : low_lanes) {
    sums.low += lane;
  }
  for (const uint32_t lane : high_lanes) {
    sums.high += lane;
  }
  return multiply_plainly(words, whole, count, sums);
}
#else
template <typename Word>
Products multiply(const Word* words, int64_t count) {
  return multiply_plainly(words, 0, count, {0, 0});
}
#endif

template <typename Word>
uint64_t hash_block(const Word* words, int64_t count, uint64_t block) {
  const Products sums = multiply(words, count);
  return (sums.low + (static_cast<uint64_t>(sums.high) << 32)) * (splitmix64(BLOCK + block) | 1);
}

template <typename Word>
uint64_t hash_words(const Word* words, int64_t count, uint64_t first) {
  uint64_t hash = 0;
  for (int64_t i = 0; i < count; i += BLOCK, ++first) {
    hash += hash_block(words + i, count - i < BLOCK ? count - i : BLOCK, first);
  }
  return hash;
}

uint64_t hash(const void* data, int64_t words, int size, uint64_t first) {
  switch (size) {
    case 1:
      return hash_words(static_cast<const uint8_t*>(data), words, first);
    case 2:
      return hash_words(static_cast<const uint16_t*>(data), words, first);
    default:
      return hash_words(static_cast<const uint32_t*>(data), words, first);
  }
}

// What is special, or would spoil a sum, one by one.
template <typename Number>
void add_slowly(Sums& sums, const Number* values, int64_t count) {
  double low = INFINITE, high = -INFINITE;
  for (int64_t i = 0; i < count; ++i) {
    const auto x = static_cast<double>(values[i]);
    if (x != x) {
      ++sums.nan;
    } else if (x - x != 0) {
      ++sums.inf;
    } else {
      sums.total += x;
      sums.squares += x * x;
      sums.zeros += x == 0;
      low = x < low ? x : low;
      high = x > high ? x : high;
      ++sums.finite;
    }
  }
  sums.low = low < sums.low ? low : sums.low;
  sums.high = high > sums.high ? high : sums.high;
}

template <typename Number>
struct Lanes {
  double total[LANES], squares[LANES];
  Number low[LANES], high[LANES];
  int64_t zeros;
};

#ifdef __AVX2__
inline void add_four(__m256d& total, __m256d& squares, __m256d x) {
  total = _mm256_add_pd(total, x);
  squares = _mm256_add_pd(squares, _mm256_mul_pd(x, x));
}

inline void store(double* lanes, __m256d first, __m256d second) {
  _mm256_storeu_pd(lanes, first);
  _mm256_storeu_pd(lanes + 4, second);
}

void sum_lanes(Lanes<float>& lanes, const float* values, int64_t whole) {
  __m256d total0 = _mm256_setzero_pd(), total1 = total0, squares0 = total0, squares1 = total0;
  __m256 low = _mm256_loadu_ps(values), high = low;
  __m256i zeros = _mm256_setzero_si256();
  for (int64_t i = 0; i < whole; i += 8) {
    const __m256 x = _mm256_loadu_ps(values + i);
    add_four(total0, squares0, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
    add_four(total1, squares1, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
    low = _mm256_min_ps(x, low);
    high = _mm256_max_ps(x, high);
    const __m256 none = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_EQ_OQ);
    zeros = _mm256_sub_epi32(zeros, _mm256_castps_si256(none));
  }
  store(lanes.total, total0, total1);
  store(lanes.squares, squares0, squares1);
  _mm256_storeu_ps(lanes.low, low);
  _mm256_storeu_ps(lanes.high, high);
  int32_t counts[8];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(counts), zeros);
  lanes.zeros = 0;
  for (const int32_t count : counts) {
    lanes.zeros += count;
  }
}

void sum_lanes(Lanes<double>& lanes, const double* values, int64_t whole) {
  __m256d total0 = _mm256_setzero_pd(), total1 = total0, squares0 = total0, squares1 = total0;
  __m256d low0 = _mm256_loadu_pd(values), low1 = _mm256_loadu_pd(values + 4);
  __m256d high0 = low0, high1 = low1;
  __m256i zeros = _mm256_setzero_si256();
  for (int64_t i = 0; i < whole; i += 8) {
    const __m256d x = _mm256_loadu_pd(values + i), y = _mm256_loadu_pd(values + i + 4);
    add_four(total0, squares0, x);
    add_four(total1, squares1, y);
    low0 = _mm256_min_pd(x, low0);
    low1 = _mm256_min_pd(y, low1);
    high0 = _mm256_max_pd(x, high0);
    high1 = _mm256_max_pd(y, high1);
    const __m256d none = _mm256_setzero_pd();
    zeros = _mm256_sub_epi64(zeros, _mm256_castpd_si256(_mm256_cmp_pd(x, none, _CMP_EQ_OQ)));
    zeros = _mm256_sub_epi64(zeros, _mm256_castpd_si256(_mm256_cmp_pd(y, none, _CMP_EQ_OQ)));
  }
  store(lanes.total, total0, total1);
  store(lanes.squares, squares0, squares1);
  store(lanes.low, low0, low1);
  store(lanes.high, high0, high1);
  int64_t counts[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(counts), zeros);
  lanes.zeros = counts[0] + counts[1] + counts[2] + counts[3];
}
#else
template <typename Number>
void sum_lanes(Lanes<Number>& lanes, const Number* values, int64_t whole) {
  lanes = {};
  for (int j = 0; j < LANES; ++j) {
    lanes.low[j] = lanes.high[j] = values[j];
  }
  for (int64_t i = 0; i < whole; i += LANES) {
    for (int j = 0; j < LANES; ++j) {
      const Number x = values[i + j];
      const auto wide = static_cast<double>(x);
      lanes.total[j] += wide;
      lanes.squares[j] += wide * wide;
      lanes.zeros += x == 0;
      lanes.low[j] = x < lanes.low[j] ? x : lanes.low[j];
      lanes.high[j] = x > lanes.high[j] ? x : lanes.high[j];
    }
  }
}
#endif

template <typename Number>
void add_block(Sums& sums, const Number* values, int64_t count) {
  const int64_t whole = count / LANES * LANES;
  if (whole != 0) {
    Lanes<Number> lanes;
    sum_lanes(lanes, values, whole);
    double total = 0, squares = 0, low = lanes.low[0], high = lanes.high[0];
    for (int j = 0; j < LANES; ++j) {
      total += lanes.total[j];
      squares += lanes.squares[j];
      low = lanes.low[j] < low ? lanes.low[j] : low;
      high = lanes.high[j] > high ? lanes.high[j] : high;
    }
    if (squares - squares != 0) {  // something is not finite, or its square is not
      add_slowly(sums, values, count);
      return;
    }
    sums.total += total;
    sums.squares += squares;
    sums.zeros += lanes.zeros;
    sums.low = low < sums.low ? low : sums.low;
    sums.high = high > sums.high ? high : sums.high;
    sums.finite += whole;
  }
  if (whole < count) {
    add_slowly(sums, values + whole, count - whole);
  }
}

float number_of(uint32_t bits) {
  float number;
  __builtin_memcpy(&number, &bits, sizeof number);
  return number;
}

// The exponent is moved by multiplying, which numbers without one of their own take part in.
float half_of(uint16_t bits) {
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7FFF) << 13;
  const float moved = number_of(magnitude) * number_of(0x77800000u);  // 2^112
  const bool special = (bits & 0x7C00) == 0x7C00;
  uint32_t result;
  __builtin_memcpy(&result, &moved, sizeof result);
  result = special ? magnitude | 0x7F800000u : result;
  return number_of(result | static_cast<uint32_t>(bits & 0x8000) << 16);
}

float bfloat_of(uint16_t bits) {
  return number_of(static_cast<uint32_t>(bits) << 16);
}

#ifdef __F16C__
void convert_halves(float* numbers, const uint16_t* raw, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(raw + i));
    _mm256_storeu_ps(numbers + i, _mm256_cvtph_ps(eight));
  }
  for (; i < count; ++i) {
    numbers[i] = half_of(raw[i]);
  }
}
#else
void convert_halves(float* numbers, const uint16_t* raw, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    numbers[i] = half_of(raw[i]);
  }
}
#endif

void read_halves(Sums& sums, const void* data, int64_t count) {
  float numbers[BLOCK];
  convert_halves(numbers, static_cast<const uint16_t*>(data), count);
  add_block(sums, numbers, count);
}

// A block of a type whose numbers are exact in `Number`.
template <typename Number, typename Raw, typename Convert>
void read_converted(Sums& sums, const void* data, int64_t count, Convert convert) {
  const Raw* raw = static_cast<const Raw*>(data);
  Number numbers[BLOCK];
  for (int64_t i = 0; i < count; ++i) {
    numbers[i] = convert(raw[i]);
  }
  add_block(sums, numbers, count);
}

template <typename Number, typename Raw>
void read_integers(Sums& sums, const void* data, int64_t count) {
  read_converted<Number, Raw>(sums, data, count,
                              [](Raw raw) { return static_cast<Number>(raw); });
}

// Words of elements of `size` bytes, hashed a block at a time with what follows reading it again.
template <typename Read>
void read_blocks(Sums& sums, const void* data, int64_t count, int size, Read&& read) {
  const int word = size < 4 ? size : 4;
  const int per_element = size / word;
  const int64_t elements = BLOCK / per_element;
  const char* bytes = static_cast<const char*>(data);
  for (int64_t i = 0; i < count; i += elements, ++sums.blocks) {
    const int64_t here = count - i < elements ? count - i : elements;
    sums.hash += hash(bytes + i * size, here * per_element, word, sums.blocks);
    read(bytes + i * size, here);
  }
}

void read(Sums& sums, const void* data, int64_t count, Element element, const float* table) {
  if (sums.blocks == 0) {
    sums.low = INFINITE;
    sums.high = -INFINITE;
  }
  const auto blocks = [&](int size, auto&& read) { read_blocks(sums, data, count, size, read); };
  using Bytes = const void*;
  switch (element) {
    case Element::uint8:
      return blocks(1, [&](Bytes p, int64_t n) { read_integers<float, uint8_t>(sums, p, n); });
    case Element::int8:
      return blocks(1, [&](Bytes p, int64_t n) { read_integers<float, int8_t>(sums, p, n); });
    case Element::uint16:
      return blocks(2, [&](Bytes p, int64_t n) { read_integers<float, uint16_t>(sums, p, n); });
    case Element::int16:
      return blocks(2, [&](Bytes p, int64_t n) { read_integers<float, int16_t>(sums, p, n); });
    case Element::uint32:
      return blocks(4, [&](Bytes p, int64_t n) { read_integers<double, uint32_t>(sums, p, n); });
    case Element::int32:
      return blocks(4, [&](Bytes p, int64_t n) { read_integers<double, int32_t>(sums, p, n); });
    case Element::uint64:
      return blocks(8, [&](Bytes p, int64_t n) { read_integers<double, uint64_t>(sums, p, n); });
    case Element::int64:
      return blocks(8, [&](Bytes p, int64_t n) { read_integers<double, int64_t>(sums, p, n); });
    case Element::half:
      return blocks(2, [&](Bytes p, int64_t n) { read_halves(sums, p, n); });
    case Element::half_pair:
      return blocks(4, [&](Bytes p, int64_t n) {
        read_halves(sums, p, n);
        read_halves(sums, static_cast<const uint16_t*>(p) + n, n);
      });
    case Element::bfloat:
      return blocks(2, [&](Bytes p, int64_t n) {
        read_converted<float, uint16_t>(sums, p, n, bfloat_of);
      });
    case Element::table:
      return blocks(1, [&](Bytes p, int64_t n) {
        read_converted<float, uint8_t>(sums, p, n, [&](uint8_t raw) { return table[raw]; });
      });
    case Element::single:
      return blocks(4, [&](Bytes p, int64_t n) {
        add_block(sums, static_cast<const float*>(p), n);
      });
    case Element::twofold:
      return blocks(8, [&](Bytes p, int64_t n) {
        add_block(sums, static_cast<const double*>(p), n);
      });
  }
}

}  // namespace

extern const Kernel LANESCOPE_VARIANT;
const Kernel LANESCOPE_VARIANT{read, hash};

}  // namespace lanescope
