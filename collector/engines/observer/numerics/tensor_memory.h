// Finds the elements of a tensor in its storage.
#pragma once

#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>

namespace lanescope {

// True for a tensor of a class of Python's: one that only has a shape, or that decomposes
// operators.
inline bool is_of_python(const c10::TensorImpl& tensor) {
  return tensor.key_set().has(c10::DispatchKey::Python);
}

// Returns the memory of a storage, also of one that is copied when it is written; null without any.
inline const char* data_of(const c10::Storage& storage) {
  c10::StorageImpl* memory = storage.unsafeGetStorageImpl();
  return memory == nullptr ? nullptr
                           : static_cast<const char*>(memory->_mutable_data_ptr_no_checks().get());
}

// Returns the first byte of a tensor's elements in its storage.
inline int64_t begin_of(const c10::TensorImpl& tensor) {
  return tensor.storage_offset_default() * static_cast<int64_t>(tensor.dtype().itemsize());
}

// Returns a tensor's elements.
inline const char* first_of(const c10::TensorImpl& tensor) {
  return data_of(tensor.unsafe_storage()) + begin_of(tensor);
}

// Returns how many bytes the elements of a tensor span in its storage, gaps included.
inline int64_t extent_of(const c10::TensorImpl& tensor) {
  const c10::IntArrayRef sizes = tensor.sizes_default(), strides = tensor.strides_default();
  int64_t elements = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) {
      return 0;
    }
    elements += (sizes[i] - 1) * strides[i];
  }
  return elements * static_cast<int64_t>(tensor.dtype().itemsize());
}

}  // namespace lanescope
