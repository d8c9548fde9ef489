// Where the memory of parameters and of their gradients is, without objects of Python for them.

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>

#include "storages/access_recorder.h"

namespace lanescope {

namespace {

// Address of the storage, offset and size in bytes. Leaves zeros for a tensor without known memory.
void put_extent(const c10::TensorImpl& tensor, int64_t* into) {
  Access access;
  if (!is_of_python(tensor) && range_of(tensor, 0, access) == Range::known) {
    into[0] = static_cast<int64_t>(access.storage);
    into[1] = access.offset;
    into[2] = access.bytes;
  }
}

}  // namespace

}  // namespace lanescope

// Fills `into`, which holds zeros, with seven numbers for each parameter: its extent, its
// gradient's, and the gradient's address. Needs Python's lock. Returns 0 while an assignment is in
// progress (`assigning` counts them, if known): a gradient may be one that is being freed.
extern "C" __attribute__((visibility("default"))) int32_t
lanescope_extents(const c10::TensorImpl* const* parameters, int64_t count, const int32_t* assigning,
                  int64_t* into) {
  if (assigning != nullptr && *assigning != 0) {
    return 0;
  }
  for (int64_t i = 0; i < count; ++i, into += 7) {
    const at::Tensor& gradient = parameters[i]->grad();
    lanescope::put_extent(*parameters[i], into);
    if (gradient.defined()) {
      lanescope::put_extent(*gradient.unsafeGetTensorImpl(), into + 3);
      into[6] = reinterpret_cast<int64_t>(gradient.unsafeGetTensorImpl());
    }
  }
  return 1;
}
