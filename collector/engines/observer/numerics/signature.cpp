#include "numerics/signature.h"

#include <c10/core/ScalarType.h>

namespace lanescope {

bool holds_tensors(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return true;
    case c10::TypeKind::ListType:
    case c10::TypeKind::OptionalType:
      return holds_tensors(type->containedType(0));
    default:
      return false;
  }
}

void Spelling::add(const c10::TensorImpl& tensor) {
  if (shapes_.empty()) {
    device_ = device_of(tensor).str();
  } else {
    shapes_ += ' ';
    dtypes_ += ' ';
  }
  const char* separator = "";
  shapes_ += '[';
  for (const int64_t size : plain_sizes(tensor)) {
    shapes_ += separator + std::to_string(size);
    separator = ", ";
  }
  shapes_ += ']';
  const c10::ScalarType dtype = dtype_of(tensor);
  dtypes_ += dtype == c10::ScalarType::Undefined ? "opaque" : c10::getDtypeNames(dtype).first;
}

}  // namespace lanescope
