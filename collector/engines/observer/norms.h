// L2 norms of many tensors in host memory, in double precision: what is finite there stays so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernel.h"

namespace c10 {
struct TensorImpl;
}

namespace lanescope {

// Whether the tensor has elements of its own in host memory, of floating point.
bool has_norm(const c10::TensorImpl& tensor);

// The memory that it takes is kept: for a list that is asked for again at every step.
class Norms {
 public:
  void clear();

  // One more tensor that has a norm. It must stay until `compute` has been called.
  void add(const c10::TensorImpl& tensor);

  // How many numbers are to be read.
  int64_t numbers() const {
    return numbers_;
  }

  // By torch's threads where there is much to read; the same bits, however many they are.
  void compute();

  // Of the i-th tensor.
  double operator[](size_t i) const {
    return tensors_[i].norm;
  }

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

}  // namespace lanescope
