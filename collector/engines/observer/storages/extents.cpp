#include "storages/extents.h"

#include <ATen/core/Tensor.h>

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

bool extents(const c10::TensorImpl* const* parameters, int64_t count, const int32_t* assigning,
             int64_t* into) {
  if (assigning != nullptr && *assigning != 0) {
    return false;
  }
  for (int64_t i = 0; i < count; ++i, into += 7) {
    const at::Tensor& gradient = parameters[i]->grad();
    put_extent(*parameters[i], into);
    if (gradient.defined()) {
      put_extent(*gradient.unsafeGetTensorImpl(), into + 3);
      into[6] = reinterpret_cast<int64_t>(gradient.unsafeGetTensorImpl());
    }
  }
  return true;
}

}  // namespace lanescope
