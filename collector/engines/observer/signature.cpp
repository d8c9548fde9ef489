#include "signature.h"

#include <c10/core/ScalarType.h>

#include <string>

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

int64_t Signature::bytes() const {
  int64_t sum = 0;
  for (size_t i = 0; i < count_; ++i) {
    int64_t elements = 1;
    for (const int64_t size : plain_sizes(at(i))) {
      elements *= size;
    }
    sum += elements * static_cast<int64_t>(at(i).dtype().itemsize());
  }
  return sum;
}

std::string Signature::spell() const {
  std::string shapes, dtypes;
  for (size_t i = 0; i < count_; ++i) {
    if (i != 0) {
      shapes += ' ';
      dtypes += ' ';
    }
    const char* separator = "";
    shapes += '[';
    for (const int64_t size : plain_sizes(at(i))) {
      shapes += separator + std::to_string(size);
      separator = ", ";
    }
    shapes += ']';
    const c10::ScalarType dtype = at(i).dtype().toScalarType();
    dtypes += dtype == c10::ScalarType::Undefined ? "opaque" : c10::getDtypeNames(dtype).first;
  }
  const c10::Device device = count_ != 0 ? device_of(at(0)) : device_;
  return shapes + '\t' + dtypes + '\t' + device.str();
}

}  // namespace lanescope
