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

// True if the tensor's elements are in host memory and its dtype has a fingerprint.
bool can_read(const c10::TensorImpl& tensor);

// Computes the fingerprint of a tensor that can be read. Only reads its memory, in logical order.
Fingerprint fingerprint(const c10::TensorImpl& tensor);

// Computes only the hash.
uint64_t hash_of(const c10::TensorImpl& tensor);

// Hashes bytes in memory order: all of them, or evenly spaced blocks if there are many.
uint64_t probe(const void* data, int64_t bytes);

}  // namespace lanescope
