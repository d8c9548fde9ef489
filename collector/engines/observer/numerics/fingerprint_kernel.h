// Fingerprint of contiguous elements in host memory, as fingerprint.py defines it.
//
// fingerprint_kernel.cpp is compiled once for each processor level. Neither it nor this file may
// include a header that defines functions: the linker could keep a copy that another processor
// cannot run. For the same reason choosing a kernel is in dispatch.cpp.
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

// Accumulates over one or more calls; all but the last read whole blocks.
struct Sums {
  uint64_t hash = 0;
  uint64_t blocks = 0;  // read before
  int64_t finite = 0, nan = 0, inf = 0, zeros = 0;
  double total = 0, squares = 0;
  double low, high;  // undefined while `finite` is 0

  double mean() const {
    return finite != 0 ? total / static_cast<double>(finite) : __builtin_nan("");
  }
};

constexpr int64_t BLOCK = 1024;  // words

struct Kernel {
  // `table`: numbers of all 256 bytes, for Element::table.
  void (*read)(Sums& sums, const void* data, int64_t count, Element element, const float* table);
  // Hash of `words` of `size` bytes (1, 2, 4); the first block has number `first`.
  uint64_t (*hash)(const void* data, int64_t words, int size, uint64_t first);
  // Sum of squares, for types that `has_squares`. Element::twofold is first multiplied by `factor`.
  double (*squares)(const void* data, int64_t count, Element element, double factor);
  // Copies every `step`-th of `count` such numbers, beginning with the first.
  void (*thin)(const void* data, int64_t count, int64_t step, Element element, double* into);
};

constexpr bool has_squares(Element element) {
  return element == Element::half || element == Element::half_pair || element == Element::bfloat ||
         element == Element::single || element == Element::twofold;
}

// Returns the widest kernel that this processor can run.
const Kernel& kernel();

// For tests: uses the kernel of this index from now on, any larger index chooses the widest.
// Returns how many there are.
size_t choose_kernel(size_t index);

}  // namespace lanescope
