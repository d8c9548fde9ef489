#include "numerics/fingerprint.h"

#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "numerics/dtype_reader.h"
#include "numerics/fingerprint_kernel.h"
#include "numerics/signature.h"
#include "numerics/strided_iterator.h"

namespace lanescope {

namespace {

constexpr int64_t PROBES = 8;               // blocks
constexpr int64_t BLOCK_BYTES = 4 * BLOCK;  // of words of 32 bits

}  // namespace

bool can_read(const c10::TensorImpl& tensor) {
  if (!tensor.has_storage() || tensor.has_symbolic_sizes_strides() || !device_of(tensor).is_cpu() ||
      tensor.is_conj() || tensor.is_neg() || is_of_python(tensor) ||
      reading_of(dtype_of(tensor)).numbers == 0) {
    return false;
  }
  int64_t elements = 1;
  for (const int64_t size : tensor.sizes_default()) {
    elements *= size;
  }
  if (elements != tensor.numel()) {
    return false;  // the sizes of a nested tensor have another meaning
  }
  const auto& memory = tensor.unsafe_storage();
  return elements == 0 ||  // the storage may have been freed
         (data_of(memory) != nullptr &&
          begin_of(tensor) + extent_of(tensor) <= static_cast<int64_t>(memory.nbytes()));
}

Fingerprint fingerprint(const c10::TensorImpl& tensor) {
  const Reading reading = reading_of(dtype_of(tensor));
  Sums sums;
  each_part(tensor, [&](const void* part, int64_t elements) {
    kernel().read(sums, part, elements * reading.numbers, reading.element, reading.table);
  });
  const double none = std::nan("");
  return {sums.hash,
          sums.nan,
          sums.inf,
          sums.zeros,
          sums.mean(),
          std::sqrt(sums.squares),
          sums.finite != 0 ? sums.low + 0.0 : none,
          sums.finite != 0 ? sums.high + 0.0 : none};
}

uint64_t hash_of(const c10::TensorImpl& tensor) {
  const auto item = static_cast<int64_t>(tensor.dtype().itemsize());
  const int64_t word = std::min<int64_t>(item, 4);
  uint64_t hash = 0, block = 0;
  each_part(tensor, [&](const void* part, int64_t elements) {
    const int64_t words = elements * (item / word);
    hash += kernel().hash(part, words, static_cast<int>(word), block);
    block += static_cast<uint64_t>(words / BLOCK);  // only the last part is not whole blocks
  });
  return hash;
}

uint64_t probe(const void* data, int64_t bytes) {
  const auto* all = static_cast<const char*>(data);
  const int64_t blocks = bytes / BLOCK_BYTES;
  if (blocks <= PROBES) {
    const int64_t words = bytes / 4;
    return kernel().hash(all, words, 4, 0) +
           kernel().hash(all + words * 4, bytes - words * 4, 1, static_cast<uint64_t>(blocks) + 1);
  }
  uint64_t hash = 0;
  for (int64_t i = 0; i < PROBES; ++i) {
    const int64_t block = i * (blocks - 1) / (PROBES - 1);
    const int64_t next = std::min(i + 1, PROBES - 1) * (blocks - 1) / (PROBES - 1);
    for (int64_t line = 0; line < BLOCK_BYTES; line += 64) {
      __builtin_prefetch(all + next * BLOCK_BYTES + line);
    }
    hash += kernel().hash(all + block * BLOCK_BYTES, BLOCK, 4, static_cast<uint64_t>(block));
  }
  return hash;
}

}  // namespace lanescope
