// L2 norms of many tensors in host memory, in double precision: what is finite there stays so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "numerics/fingerprint_kernel.h"

namespace c10 {
struct TensorImpl;
}

namespace lanescope {

// Whether the tensor has elements of its own in host memory, of floating point.
bool has_norm(const c10::TensorImpl& tensor);

// Whether it also has an order.
bool has_spread(const c10::TensorImpl& tensor);

// The memory that it takes is kept: for a list that is asked for again at every step.
class Norms {
 public:
  void clear();

  // One more tensor that has a norm. It must stay until `compute` has been called.
  void add(const c10::TensorImpl& tensor);

  // How many numbers are to be read.
  int64_t numbers() const { return numbers_; }

  // By torch's threads where there is much to read; the same bits, however many they are.
  void compute();

  // Of the i-th tensor.
  double operator[](size_t i) const { return tensors_[i].norm; }

 private:
  struct Tensor {
    const c10::TensorImpl* impl;
    double squares, norm;
  };

  // Numbers that lie one after another.
  struct Stretch {
    const char* data;
    int64_t count;
    size_t tensor;
    Element element;
    double squares;
  };

  std::vector<Tensor> tensors_;
  std::vector<Stretch> stretches_;
  std::vector<size_t> portions_;  // where in `stretches_` each begins
  int64_t numbers_ = 0, in_portion_ = 0;
};

// The largest absolute value, NaN where there is a NaN, and how many elements are not 0, of each of
// these tensors, which have a spread.
void spreads(const c10::TensorImpl* const* tensors, int64_t count, double* largest,
             double* nonzero);

// At most `most` numbers of each of these tensors, evenly spaced in memory: every n-th for the
// smallest n that will do. False: one of them cannot be read so.
bool thin(const c10::TensorImpl* const* tensors, int64_t count, int64_t most, double* into);

}  // namespace lanescope
