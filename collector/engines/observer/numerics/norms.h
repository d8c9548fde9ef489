// Computes L2 norms of many tensors in host memory, in double precision: finite ones stay finite.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "numerics/fingerprint_kernel.h"

namespace c10 {
struct TensorImpl;
}

namespace lanescope {

// True if the tensor's elements are floating-point numbers in host memory.
bool has_norm(const c10::TensorImpl& tensor);

// True if they are also real numbers.
bool has_spread(const c10::TensorImpl& tensor);

// Keeps its memory, for a list of tensors that is read at every step.
class Norms {
 public:
  void clear();

  // Adds a tensor that has a norm. It must exist until `compute` has been called.
  void add(const c10::TensorImpl& tensor);

  // How many numbers are to be read.
  int64_t numbers() const { return numbers_; }

  // Uses torch's threads if there is much to read. The result does not depend on their number.
  void compute();

  // The norm of the i-th tensor.
  double operator[](size_t i) const { return tensors_[i].norm; }

 private:
  struct Tensor {
    const c10::TensorImpl* impl;
    double squares, norm;
  };

  // Contiguous numbers.
  struct Stretch {
    const char* data;
    int64_t count;
    size_t tensor;
    Element element;
    double squares;
  };

  std::vector<Tensor> tensors_;
  std::vector<Stretch> stretches_;
  std::vector<size_t> portions_;  // index in `stretches_` at which each begins
  int64_t numbers_ = 0, in_portion_ = 0;
};

// Computes for each tensor, which must have a spread, its largest absolute value (NaN if it holds a
// NaN) and how many elements are not 0.
void spreads(const c10::TensorImpl* const* tensors, int64_t count, double* largest,
             double* nonzero);

// Copies at most `most` evenly spaced numbers of each tensor: every n-th, with the smallest n that
// fits. False if one of them cannot be read so.
bool thin(const c10::TensorImpl* const* tensors, int64_t count, int64_t most, double* into);

}  // namespace lanescope
