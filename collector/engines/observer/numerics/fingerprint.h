// Fingerprint of a tensor in host memory, as fingerprint.py defines it.
#pragma once

#include <cstdint>

namespace c10 {
struct TensorImpl;
}

namespace lanescope {

struct Fingerprint {
  uint64_t hash;
  int64_t nan, inf, zeros;
  double mean, l2, low, high;

  bool finite() const { return nan == 0 && inf == 0; }
};

// Whether the tensor has elements of its own in host memory, of a type that has a fingerprint.
bool can_read(const c10::TensorImpl& tensor);

// Of a tensor that can be read. Reads its memory, in logical order, and nothing else.
Fingerprint fingerprint(const c10::TensorImpl& tensor);

// Its hash alone.
uint64_t hash_of(const c10::TensorImpl& tensor);

// Hash of bytes as they lie in memory: of all, or of some blocks evenly spread over many.
uint64_t probe(const void* data, int64_t bytes);

}  // namespace lanescope
