#include "numerics/norms.h"

#include <ATen/Parallel.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cmath>

#include "numerics/dtype_reader.h"
#include "numerics/fingerprint.h"
#include "numerics/signature.h"
#include "numerics/strided_iterator.h"

namespace lanescope {

namespace {

constexpr int64_t STRETCH = 1 << 16;  // numbers
constexpr int64_t PORTION = 1 << 18;  // numbers that make waking another thread worthwhile

double squares_of(const c10::TensorImpl& tensor, const Reading& reading, double factor) {
  double sum = 0;
  each_part(tensor, [&](const void* part, int64_t elements) {
    sum += kernel().squares(part, elements * reading.numbers, reading.element, factor);
  });
  return sum;
}

// Squares of doubles overflow above 1e154 and underflow below 1e-162: then the numbers are scaled
// first.
double norm_of(const c10::TensorImpl& tensor, double squares) {
  const Reading reading = reading_of(dtype_of(tensor));
  const bool large = squares == INFINITY, small = squares < 0x1p-900;
  if (reading.element != Element::twofold || !(large || small) || tensor.numel() == 0) {
    return std::sqrt(squares);
  }
  const double factor = large ? 0x1p-600 : 0x1p600;
  return std::sqrt(squares_of(tensor, reading, factor)) / factor;
}

}  // namespace

bool has_norm(const c10::TensorImpl& tensor) {
  return can_read(tensor) && has_squares(reading_of(dtype_of(tensor)).element) &&
         !tensor.is_nested();
}

bool has_spread(const c10::TensorImpl& tensor) {
  return has_norm(tensor) && !c10::isComplexType(dtype_of(tensor));
}

void Norms::clear() {
  tensors_.clear();
  stretches_.clear();
  portions_.clear();
  numbers_ = in_portion_ = 0;
}

void Norms::add(const c10::TensorImpl& tensor) {
  const size_t place = tensors_.size();
  tensors_.push_back({&tensor, 0, 0});
  const Reading reading = reading_of(dtype_of(tensor));
  const int64_t count = tensor.numel() * reading.numbers;
  numbers_ += count;
  if (count == 0 || !tensor.is_non_overlapping_and_dense_default()) {
    return;
  }
  // Memory order: the order of the dimensions does not matter.
  const char* data = first_of(tensor);
  const int64_t size = static_cast<int64_t>(tensor.dtype().itemsize()) / reading.numbers;
  for (int64_t first = 0; first < count; first += STRETCH) {
    const int64_t here = std::min(count - first, STRETCH);
    if (in_portion_ == 0) {
      portions_.push_back(stretches_.size());
    }
    in_portion_ = in_portion_ + here < PORTION ? in_portion_ + here : 0;
    stretches_.push_back({data + first * size, here, place, reading.element, 0});
  }
}

void Norms::compute() {
  const auto portions = static_cast<int64_t>(portions_.size());
  at::parallel_for(0, portions, 1, [&](int64_t first, int64_t last) {
    const size_t end = last < portions ? portions_[last] : stretches_.size();
    for (size_t i = portions_[first]; i < end; ++i) {
      Stretch& of = stretches_[i];
      of.squares = kernel().squares(of.data, of.count, of.element, 1);
    }
  });
  for (const Stretch& of : stretches_) {
    tensors_[of.tensor].squares += of.squares;
  }
  for (Tensor& one : tensors_) {
    const c10::TensorImpl& tensor = *one.impl;
    if (!tensor.is_non_overlapping_and_dense_default()) {
      one.squares = squares_of(tensor, reading_of(dtype_of(tensor)), 1);
    }
    one.norm = norm_of(tensor, one.squares);
  }
}

void spreads(const c10::TensorImpl* const* tensors, int64_t count, double* largest,
             double* nonzero) {
  int64_t numbers = 0;
  for (int64_t i = 0; i < count; ++i) {
    numbers += tensors[i]->numel();
  }
  const int64_t threads = numbers / PORTION + 1;
  at::parallel_for(0, count, at::divup(count, threads), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const Fingerprint found = fingerprint(*tensors[i]);
      largest[i] = found.nan != 0   ? NAN
                   : found.inf != 0 ? INFINITY
                                    : std::max(-found.low, found.high);
      nonzero[i] = static_cast<double>(tensors[i]->numel() - found.zeros);
    }
  });
}

bool thin(const c10::TensorImpl* const* tensors, int64_t count, int64_t most, double* into) {
  for (int64_t i = 0; i < count; ++i) {
    if (!has_spread(*tensors[i]) || !tensors[i]->is_non_overlapping_and_dense_default()) {
      return false;
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t numbers = tensors[i]->numel();
    const int64_t step = std::max<int64_t>(1, at::divup(numbers, most));
    kernel().thin(first_of(*tensors[i]), numbers, step, reading_of(dtype_of(*tensors[i])).element,
                  into);
    into += at::divup(numbers, step);
  }
  return true;
}

}  // namespace lanescope
