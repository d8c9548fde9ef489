// Computes hash and statistics in one pass over the elements, block by block.

#include "numerics/fingerprint_kernel.h"

#if defined(__AVX512IFMA__)
#include "numerics/fingerprint_avx512.h"
#elif defined(__AVX2__)
#include "numerics/fingerprint_avx2.h"
#else
#include "numerics/fingerprint_scalar.h"
#endif

#ifndef LANESCOPE_VARIANT
#define LANESCOPE_VARIANT generic
#endif

namespace lanescope {

namespace {

// Words left over at the end of a block, or fewer than one step.
template <typename Word>
uint64_t multiply_rest(const Word* words, int64_t from, int64_t count) {
  uint64_t sum = 0;
  for (int64_t i = from; i < count; ++i) {
    const uint32_t word = at(words, i);
    sum += (word ^ word >> 16) * weight_of(i);
  }
  return sum;
}

uint64_t in_block(uint64_t sum, uint64_t block) {
  return sum * (splitmix64(BLOCK + block) | 1);
}

// Distance to the next read, for prefetching. 0 near the end: memory behind it is not ours.
int64_t ahead_of(int64_t left, int64_t here, int64_t size) {
  return left >= 2 * here ? here * size : 0;
}

template <typename Word>
uint64_t hash_words(const Word* words, int64_t count, uint64_t block) {
  uint64_t hash = 0;
  for (int64_t i = 0; i < count; i += BLOCK, ++block) {
    const int64_t here = count - i < BLOCK ? count - i : BLOCK, whole = here / STEP * STEP;
    const int64_t ahead = ahead_of(count - i, here, sizeof(Word));
    hash +=
        in_block(multiply(words + i, whole, ahead) + multiply_rest(words + i, whole, here), block);
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

// Handles non-finite numbers and those that would overflow a sum, one by one.
template <typename Format>
void add_slowly(Sums& sums, const typename Format::Raw* raw, int64_t count) {
  double low = INFINITE, high = -INFINITE;
  for (int64_t i = 0; i < count; ++i) {
    const auto x = static_cast<double>(Format::number(at(raw, i)));
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

// Adds the statistics of a block and returns the sum of its words.
template <typename Format>
uint64_t add_block(Sums& sums, const typename Format::Raw* raw, int64_t count, int64_t ahead) {
  using Raw = typename Format::Raw;
  const int64_t whole = count / LANES * LANES;
  uint64_t words = 0;
  if (whole != 0) {
    Part part;
    words = pass<Format>(part, raw, whole, ahead);
    double total = 0, squares = 0;
    for (int j = 0; j < LANES; ++j) {
      total += part.total[j];
      squares += part.squares[j];
    }
    if (squares - squares != 0) {  // a number or its square is not finite
      add_slowly<Format>(sums, raw, whole);
    } else {
      sums.total += total;
      sums.squares += squares;
      sums.zeros += part.zeros;
      sums.low = part.low < sums.low ? part.low : sums.low;
      sums.high = part.high > sums.high ? part.high : sums.high;
      sums.finite += whole;
    }
  }
  if (whole < count) {
    add_slowly<Format>(sums, raw + whole, count - whole);
    words += multiply_rest(reinterpret_cast<const Word<Raw>*>(raw), whole * WORDS<Raw>,
                           count * WORDS<Raw>);
  }
  return words;
}

template <typename Format>
void read_blocks(Sums& sums, const void* data, int64_t count) {
  using Raw = typename Format::Raw;
  constexpr int64_t ELEMENTS = BLOCK / WORDS<Raw>;
  const Raw* raw = static_cast<const Raw*>(data);
  for (int64_t i = 0; i < count; i += ELEMENTS, ++sums.blocks) {
    const int64_t here = count - i < ELEMENTS ? count - i : ELEMENTS;
    const int64_t ahead = ahead_of(count - i, here, sizeof(Raw));
    sums.hash += in_block(add_block<Format>(sums, raw + i, here, ahead), sums.blocks);
  }
}

// For dtypes whose words and numbers cover different bytes: hashes a block, then `add` adds its
// numbers.
template <typename Word, typename Add>
void read_apart(Sums& sums, const void* data, int64_t count, Add&& add) {
  const Word* words = static_cast<const Word*>(data);
  for (int64_t i = 0; i < count; i += BLOCK, ++sums.blocks) {
    const int64_t here = count - i < BLOCK ? count - i : BLOCK;
    sums.hash += hash_words(words + i, here, sums.blocks);
    add(words + i, here);
  }
}

void read(Sums& sums, const void* data, int64_t count, Element element, const float* table) {
  if (sums.blocks == 0) {
    sums.low = INFINITE;
    sums.high = -INFINITE;
  }
  switch (element) {
    case Element::uint8:
      return read_blocks<Plain<uint8_t, float>>(sums, data, count);
    case Element::int8:
      return read_blocks<Plain<int8_t, float>>(sums, data, count);
    case Element::uint16:
      return read_blocks<Plain<uint16_t, float>>(sums, data, count);
    case Element::int16:
      return read_blocks<Plain<int16_t, float>>(sums, data, count);
    case Element::uint32:
      return read_blocks<Plain<uint32_t, double>>(sums, data, count);
    case Element::int32:
      return read_blocks<Plain<int32_t, double>>(sums, data, count);
    case Element::uint64:
      return read_blocks<Plain<uint64_t, double>>(sums, data, count);
    case Element::int64:
      return read_blocks<Plain<int64_t, double>>(sums, data, count);
    case Element::half:
      return read_blocks<Half>(sums, data, count);
    case Element::bfloat:
      return read_blocks<Bfloat>(sums, data, count);
    case Element::single:
      return read_blocks<Plain<float>>(sums, data, count);
    case Element::twofold:
      return read_blocks<Plain<double>>(sums, data, count);
    case Element::half_pair:
      return read_apart<uint32_t>(sums, data, count, [&](const uint32_t* words, int64_t here) {
        const auto* halves = reinterpret_cast<const uint16_t*>(words);
        add_block<Half>(sums, halves, here, 0);
        add_block<Half>(sums, halves + here, here, 0);
      });
    case Element::table:
      return read_apart<uint8_t>(sums, data, count, [&](const uint8_t* words, int64_t here) {
        float numbers[BLOCK];
        for (int64_t i = 0; i < here; ++i) {
          numbers[i] = table[words[i]];
        }
        add_block<Plain<float>>(sums, numbers, here, 0);
      });
  }
}

// Number i goes to sum i modulo SIDE_BY_SIDE: enough sums to hide the latency of an addition. All
// processors do the same additions, so the result is bitwise identical.
template <typename Format>
double add_squares(const void* data, int64_t count, double factor) {
  constexpr int64_t SIDE_BY_SIDE = 32, AHEAD = 2048;
  using Raw = typename Format::Raw;
  const Raw* raw = static_cast<const Raw*>(data);
  const auto square = [&](int64_t i) {
    auto x = static_cast<double>(Format::number(at(raw, i)));
    if constexpr (sizeof(Raw) == sizeof(double)) {
      x *= factor;
    }
    return x * x;
  };
  double sums[SIDE_BY_SIDE] = {};
  int64_t i = 0;
  for (; i + SIDE_BY_SIDE <= count; i += SIDE_BY_SIDE) {
    for (size_t line = 0; line < SIDE_BY_SIDE * sizeof(Raw); line += 64) {
      fetch(raw + i, AHEAD + line);
    }
    for (int64_t j = 0; j < SIDE_BY_SIDE; ++j) {
      sums[j] += square(i + j);
    }
  }
  for (int64_t j = 0; i + j < count; ++j) {
    sums[j] += square(i + j);
  }
  double total = 0;
  for (const double sum : sums) {
    total += sum;
  }
  return total;
}

// Calls `with` with the format of a dtype that has squares.
template <typename With>
auto for_format(Element element, With&& with) {
  switch (element) {
    case Element::half:
    case Element::half_pair:
      return with(Half{});
    case Element::bfloat:
      return with(Bfloat{});
    case Element::single:
      return with(Plain<float>{});
    default:
      return with(Plain<double>{});
  }
}

double squares(const void* data, int64_t count, Element element, double factor) {
  const int64_t numbers = element == Element::half_pair ? 2 * count : count;
  return for_format(
      element, [&](auto format) { return add_squares<decltype(format)>(data, numbers, factor); });
}

void thin(const void* data, int64_t count, int64_t step, Element element, double* into) {
  for_format(element, [&](auto format) {
    const auto* raw = static_cast<const typename decltype(format)::Raw*>(data);
    for (int64_t i = 0; i < count; i += step) {
      *into++ = static_cast<double>(format.number(at(raw, i)));
    }
  });
}

}  // namespace

extern const Kernel LANESCOPE_VARIANT;
const Kernel LANESCOPE_VARIANT{read, hash, squares, thin};

}  // namespace lanescope
