// Notes means of nothing, which are 0 / 0: of no elements, or of targets that are all ignored.
#pragma once

#include <ATen/core/Reduction.h>
#include <ATen/record_function.h>

#include <algorithm>

#include "numerics/tensor_memory.h"
#include "operators/event_value.h"
#include "operators/inputs.h"
#include "operators/operators.h"
#include "thread/frames.h"
#include "thread/thread.h"

namespace lanescope {

// True for a number in host memory that is 0.
inline bool is_zero(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu() || !tensor.has_storage() || tensor.dim() != 0 ||
      is_of_python(*tensor.unsafeGetTensorImpl()) ||
      data_of(tensor.unsafeGetTensorImpl()->unsafe_storage()) == nullptr) {
    return false;
  }
  const char* bytes = first_of(*tensor.unsafeGetTensorImpl());
  return std::all_of(bytes, bytes + tensor.itemsize(), [](char byte) { return byte == 0; });
}

// Returns of how many elements a call may take the mean: of its targets, or 0 if it gets none; -1:
// it takes no mean that can be empty. Called at the start, as inputs are gone at the end.
inline int64_t averaged(const Operator& op, const Inputs& inputs) {
  const auto& values = inputs.values;
  const size_t counted = op.counts_targets ? 1 : 0;
  if (counted >= values.size() || !values[counted].isTensor()) {
    return -1;
  }
  const at::Tensor& tensor = values[counted].toTensor();
  if (is_of_python(*tensor.unsafeGetTensorImpl())) {
    return -1;
  }
  const int64_t elements = tensor.numel();
  if (op.counts_targets) {
    return elements;
  }
  const auto place = static_cast<size_t>(op.reduction);
  const bool means = op.reduction < 0 || (place < values.size() && values[place].isInt() &&
                                          values[place].toInt() == at::Reduction::Mean);
  return means && elements == 0 ? 0 : -1;
}

// True if no element counts: the weight of all targets is 0, or there are none.
inline bool is_empty(const Operator& op, c10::ArrayRef<c10::IValue> results) {
  if (results.empty() || !results[0].isTensor() || !results[0].toTensor().defined()) {
    return false;
  }
  const at::Tensor& result = results[0].toTensor();
  if (!op.counts_targets) {
    return result.numel() != 0;
  }
  return result.dim() == 0 && results.size() == 2 && results[1].isTensor() &&
         is_zero(results[1].toTensor());
}

[[gnu::noinline]] inline void note_empty_mean(Thread& thread, const Frame& frame,
                                              const at::RecordFunction& function) {
  if (is_empty(*frame.op, outputs_of(*frame.op, function))) {
    note_value(thread, frame, layout::EMPTY_MEAN, static_cast<double>(frame.averaged));
  }
}

}  // namespace lanescope
