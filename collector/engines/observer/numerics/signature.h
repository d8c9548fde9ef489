// Shapes, dtypes and device of tensors as one text, made once per distinct signature.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <cstdint>
#include <string>

#include "journal/string_table.h"
#include "thread/thread.h"

namespace lanescope {

bool holds_tensors(const c10::TypePtr& type);

// Calls `visit` with each defined tensor of an argument: a tensor, an optional one, or a list.
// Skips wrapped Python numbers.
template <typename Visit>
inline void each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    const c10::TensorImpl* tensor = value.unsafeToTensorImpl();
    if (tensor != c10::UndefinedTensorImpl::singleton() && !tensor->is_wrapped_number()) {
      visit(*tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (!item.isTensor() && !item.isList() && !item.isNone()) {
        return;  // a list of numbers
      }
      each_tensor(item, visit);
    }
  }
}

// Returns no sizes for tensors with symbolic or subclass shapes: asking could run Python.
inline c10::IntArrayRef plain_sizes(const c10::TensorImpl& tensor) {
  return tensor.has_symbolic_sizes_strides() ? c10::IntArrayRef() : tensor.sizes_default();
}

inline c10::Device device_of(const c10::TensorImpl& tensor) {
  struct Open : c10::TensorImpl {
    using c10::TensorImpl::device_default;
  };
  return (tensor.*(&Open::device_default))();
}

// Works on a copy: up to torch 2.7 the conversion may change the object.
inline c10::ScalarType dtype_of(const c10::TensorImpl& tensor) {
  auto dtype = tensor.dtype();
  return dtype.toScalarType();
}

// "[4, 8] [8] TAB float32 float32 TAB cpu"
class Spelling {
 public:
  void add(const c10::TensorImpl& tensor);
  void set_device(c10::Device device) { device_ = device.str(); }
  std::string text() const { return shapes_ + '\t' + dtypes_ + '\t' + device_; }

 private:
  std::string shapes_, dtypes_, device_;
};

// Distinguishes signatures by a hash, without making their text.
class Signature {
 public:
  void add(const c10::TensorImpl& tensor) {
    const c10::IntArrayRef sizes = plain_sizes(tensor);
    const c10::Device device = device_of(tensor);
    mix(static_cast<uint64_t>(dtype_of(tensor)) << 32 |
        static_cast<uint64_t>(static_cast<uint8_t>(device.type())) << 24 |
        static_cast<uint64_t>(static_cast<uint8_t>(device.index())) << 16 | sizes.size());
    for (const int64_t size : sizes) {
      mix(static_cast<uint64_t>(size));
    }
    empty_ = false;
  }

  // For an operator without tensors that takes a device argument.
  void add(c10::Device device) {
    mix(static_cast<uint64_t>(static_cast<uint8_t>(device.type())) << 8 |
        static_cast<uint64_t>(static_cast<uint8_t>(device.index())));
    empty_ = false;
  }

  bool empty() const { return empty_; }

  // Returns its text, 0 for an empty one. `spell` adds the same tensors to a Spelling; it is called
  // only for a new signature.
  template <typename Spell>
  Text text(Thread& thread, Spell&& spell) const {
    if (empty_) {
      return 0;
    }
    const uint64_t hash = hash_ | 1;  // 0 marks a free slot
    auto& slot = thread.signatures.slot(hash);
    if (__builtin_expect(slot.hash != hash, 0)) {
      Spelling spelling;
      spell(spelling);
      bool exact = false;
      slot.text = texts().intern_signature(spelling.text(), exact);
      // A signature left out is not cached, so that each use is counted.
      slot.hash = exact ? hash : 0;
    }
    return slot.text;
  }

 private:
  void mix(uint64_t value) {
    const auto product =
        static_cast<unsigned __int128>(hash_ ^ value ^ 0xA0761D6478BD642Fu) * 0xE7037ED1A0B428DBu;
    hash_ = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }

  uint64_t hash_ = 0x2545F4914F6CDD1Du;
  bool empty_ = true;
};

}  // namespace lanescope
