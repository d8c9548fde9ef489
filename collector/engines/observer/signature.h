// Shapes, dtypes and device of tensors as one text, which is made once for each that differs.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <cstdint>
#include <vector>

#include "texts.h"
#include "thread.h"

namespace lanescope {

bool holds_tensors(const c10::TypePtr& type);

// Calls `visit` with each defined tensor of an argument: a tensor, an optional one, or a list.
template <typename Visit>
inline void each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    const c10::TensorImpl* tensor = value.unsafeToTensorImpl();
    if (tensor != c10::UndefinedTensorImpl::singleton()) {
      visit(*tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      each_tensor(item, visit);
    }
  }
}

// Tensors with shapes of their own making (symbols, subclasses) keep theirs: to ask could run
// Python.
inline c10::IntArrayRef plain_sizes(const c10::TensorImpl& tensor) {
  return tensor.has_symbolic_sizes_strides() ? c10::IntArrayRef() : tensor.sizes_default();
}

// Without asking a subclass, which could run Python.
inline c10::Device device_of(const c10::TensorImpl& tensor) {
  struct Open : c10::TensorImpl {
    using c10::TensorImpl::device_default;
  };
  return (tensor.*(&Open::device_default))();
}

class Signature {
 public:
  void add(const c10::IValue& value) {
    each_tensor(value, [this](const c10::TensorImpl& tensor) { add(tensor); });
  }

  void add(const c10::TensorImpl& tensor) {
    if (tensor.is_wrapped_number()) {
      return;  // a number of Python's
    }
    const c10::IntArrayRef sizes = plain_sizes(tensor);
    const c10::Device device = device_of(tensor);
    mix(static_cast<uint64_t>(tensor.dtype().toScalarType()) << 32 |
        static_cast<uint64_t>(static_cast<uint8_t>(device.type())) << 24 |
        static_cast<uint64_t>(static_cast<uint8_t>(device.index())) << 16 | sizes.size());
    for (const int64_t size : sizes) {
      mix(static_cast<uint64_t>(size));
    }
    if (count_ < KEPT) {
      tensors_[count_] = &tensor;
    } else {
      more_.push_back(&tensor);
    }
    ++count_;
  }

  // Of an operator without tensors that was told where to make one.
  void add(c10::Device device) {
    mix(static_cast<uint64_t>(static_cast<uint8_t>(device.type())) << 8 |
        static_cast<uint64_t>(static_cast<uint8_t>(device.index())));
    device_ = device;
    given_ = true;
  }

  size_t count() const {
    return count_;
  }

  // 0 where nothing was added.
  Text text(Thread& thread) const {
    if (count_ == 0 && !given_) {
      return 0;
    }
    const uint64_t hash = hash_ | 1;  // 0 marks a free slot
    auto& slot = thread.signatures.slots[(hash >> 8) % SignatureCache::SLOTS];
    if (__builtin_expect(slot.hash != hash, 0)) {
      slot.text = texts().intern(spell());
      slot.hash = hash;
    }
    return slot.text;
  }

  int64_t bytes() const;
  bool on_cpu() const {
    return count_ != 0 && device_of(*tensors_[0]).is_cpu();
  }

 private:
  static constexpr size_t KEPT = 8;

  void mix(uint64_t value) {
    const auto product =
        static_cast<unsigned __int128>(hash_ ^ value ^ 0xA0761D6478BD642Fu) * 0xE7037ED1A0B428DBu;
    hash_ = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }

  const c10::TensorImpl& at(size_t i) const {
    return i < KEPT ? *tensors_[i] : *more_[i - KEPT];
  }

  std::string spell() const;

  uint64_t hash_ = 0x2545F4914F6CDD1Du;
  size_t count_ = 0;
  bool given_ = false;
  c10::Device device_{c10::DeviceType::CPU};
  const c10::TensorImpl* tensors_[KEPT];
  std::vector<const c10::TensorImpl*> more_;
};

}  // namespace lanescope
