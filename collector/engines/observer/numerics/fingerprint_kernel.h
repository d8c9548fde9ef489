// Fingerprint of elements that lie one after another in host memory, as fingerprint.py defines it.
//
// fingerprint_kernel.cpp is compiled more than once, for processors of different abilities: neither it nor this
// file may include what has functions of its own, or the linker could mix them.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace lanescope {

// How elements are read as numbers.
enum class Element : uint8_t {
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  uint64,
  int64,
  half,
  half_pair,
  bfloat,
  single,
  twofold,
  table,
};

// Accumulated over one or more calls; every call but the last reads whole blocks.
struct Sums {
  uint64_t hash = 0;
  uint64_t blocks = 0;  // read so far
  int64_t finite = 0, nan = 0, inf = 0, zeros = 0;
  double total = 0, squares = 0;
  double low, high;  // meaningless while `finite` is 0

  double mean() const {
    return finite != 0 ? total / static_cast<double>(finite) : __builtin_nan("");
  }
};

constexpr int64_t BLOCK = 1024;  // words

struct Kernel {
  // `table`: numbers of all 256 bytes, for Element::table.
  void (*read)(Sums& sums, const void* data, int64_t count, Element element, const float* table);
  // Hash alone of `words` of `size` bytes (1, 2, 4), from block `first` on.
  uint64_t (*hash)(const void* data, int64_t words, int size, uint64_t first);
  // Sum of the squares of numbers of the types that `has_squares`, those of Element::twofold times
  // `factor`.
  double (*squares)(const void* data, int64_t count, Element element, double factor);
  // Every `step`-th of `count` such numbers, the first of them included.
  void (*thin)(const void* data, int64_t count, int64_t step, Element element, double* into);
};

constexpr bool has_squares(Element element) {
  return element == Element::half || element == Element::half_pair || element == Element::bfloat ||
         element == Element::single || element == Element::twofold;
}

// The widest that this processor can run.
const Kernel& kernel();

// For tests: use that of this index from now on, of the number returned; any larger index is the
// widest again.
size_t choose_kernel(size_t index);

}  // namespace lanescope
