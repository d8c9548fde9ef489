// At level numerics: which tensors of an operator are read, and what is known of the rest.
//
// The outermost operator that is not made of others counts; what runs inside it is its own affair.
// Read are its results and the inputs that it changed, when it has ended; and as it begins, inputs
// that no recorded operator wrote, and those of collectives. Whether an input still holds what was
// written last is looked at, in a bounded number of its bytes, each time it is used.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <vector>

#include "journal/string_table.h"
#include "numerics/fingerprint.h"
#include "thread/frames.h"

namespace lanescope {

class Thread;
struct Operator;

// What is read of an operator.
enum class Reads : uint8_t {
  nothing,     // it makes no values (empty), or waits for them
  results,     // it overwrites what it changes
  all,         // and its inputs
  collective,  // inputs always; what it changes is there only later
};

// Of one thread: the operator that is being read.
struct Values {
  struct Row {
    Fingerprint fingerprint;
    uint64_t expected;
    Text signature;
    uint16_t position;
    bool unexpected;
  };
  struct Written {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // it may be gone when the operator ends
    uint16_t position;
  };

  bool busy = false;
  uint32_t blind = 0;                // frames that are
  bool finite = true, known = true;  // what the operator found
  bool unset = false;                // or made something of: what nobody had set
  std::vector<Row> rows;
  std::vector<Written> written;

  void clear();
};

// By name, once per operator.
Reads reads_of(const std::string& name, bool collective);

// The operator of the frame begins, whose inputs are `inputs`.
void begin_values(Thread& thread, Frame& frame, c10::ArrayRef<const c10::IValue> inputs);

// It ended. Those left out tell nothing, but what they wrote is no longer known.
void end_values(Thread& thread, const Frame& frame, const at::RecordFunction& function,
                bool left_out);

// What runs inside the frame, a compiled region or an operator that torch.func transforms, writes to
// tensors without an operator that would tell. Of what is read meanwhile it is not expected that it
// is found again, nor of what was read before, once it has ended.
void begin_blind(Thread& thread, Frame& frame);
void end_blind(Thread& thread);

}  // namespace lanescope
