// Chooses the kernel: the widest that was built and that this processor can run.
#include <array>
#include <atomic>
#include <cstddef>

#include "numerics/fingerprint_kernel.h"

namespace lanescope {

extern const Kernel generic;
#ifdef __x86_64__
extern const Kernel avx2, avx512;
#endif

namespace {

// Kernels that this processor can run, the widest last.
struct Kernels {
  std::array<const Kernel*, 3> all{&generic};
  size_t count = 1;

  Kernels() {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
        __builtin_cpu_supports("fma")) {
      all[count++] = &avx2;
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
          __builtin_cpu_supports("avx512ifma")) {
        all[count++] = &avx512;
      }
    }
#endif
  }
};

const Kernels& kernels() {
  static const Kernels found;
  return found;
}

std::atomic<const Kernel*>& chosen() {
  static std::atomic<const Kernel*> kernel{kernels().all[kernels().count - 1]};
  return kernel;
}

}  // namespace

const Kernel& kernel() {
  return *chosen().load(std::memory_order_relaxed);
}

size_t choose_kernel(size_t index) {
  const size_t count = kernels().count;
  chosen() = kernels().all[index < count ? index : count - 1];
  return count;
}

}  // namespace lanescope
