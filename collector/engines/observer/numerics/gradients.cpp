#include "numerics/gradients.h"

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstring>
#include <vector>

#include "base/recording_state.h"
#include "numerics/norms.h"
#include "thread/thread.h"

namespace lanescope {

namespace {

struct Taken {
  enum State : uint8_t { NONE, READ, LEFT };
  std::vector<State> states;          // of each parameter
  std::vector<at::Tensor> gradients;  // of the parameters that are read, kept alive
  Norms norms;                        // of the same

  void clear() {
    states.clear();
    gradients.clear();
    norms.clear();
  }
};

// Releases the gradients, also after an exception.
struct LettingGo {
  Taken& taken;
  ~LettingGo() { taken.clear(); }
};

thread_local Taken taken;

}  // namespace

int64_t take_gradients(const c10::TensorImpl* const* parameters, int64_t count,
                       const int32_t* assigning, uint32_t* left) {
  taken.clear();  // of a call that `write_gradients` did not follow
  if (assigning != nullptr && *assigning != 0) {
    return -1;
  }
  uint32_t& left_count = left[0] = 0;
  for (int64_t i = 0; i < count; ++i) {
    const c10::TensorImpl& parameter = *parameters[i];
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) {
      taken.states.push_back(Taken::NONE);
    } else if (has_norm(*gradient.unsafeGetTensorImpl()) && gradient.dtype() == parameter.dtype()) {
      taken.states.push_back(Taken::READ);
      taken.gradients.push_back(gradient);
      taken.norms.add(*taken.gradients.back().unsafeGetTensorImpl());
    } else {
      taken.states.push_back(Taken::LEFT);
      left[++left_count] = static_cast<uint32_t>(i);
    }
  }
  return taken.norms.numbers();
}

void write_gradients(const layout::Record* records, int64_t start) {
  const LettingGo at_the_end{taken};
  Thread* thread = entered_thread();
  if (thread == nullptr) {
    return;
  }
  const auto write = [&](size_t i, uint8_t scope, double norm) {
    layout::Record record = records[i];
    record.scope = scope;
    record.start = start;
    record.step = recording.step.load(std::memory_order_relaxed);
    record.module = thread->shared.module;
    record.phase = thread->shared.phase;
    std::memcpy(&record.sequence, &norm, sizeof norm);
    thread->append(record);
  };
  for (size_t i = 0; i < taken.states.size(); ++i) {
    if (taken.states[i] == Taken::NONE) {
      write(i, layout::GRADIENT_NONE, 0);
    }
  }
  taken.norms.compute();
  size_t read = 0;
  for (size_t i = 0; i < taken.states.size(); ++i) {
    if (taken.states[i] == Taken::READ) {
      write(i, 0, taken.norms[read++]);
    }
  }
}

}  // namespace lanescope
