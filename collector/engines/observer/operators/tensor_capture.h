// At level numerics: reads tensors of operators, and remembers the state of those not read.
//
// Only the outermost operator that is not composite is read, not the operators inside it. At its
// end its results and the inputs that it changed are read; at its start, inputs that no recorded
// operator wrote, and those of collectives. Each use of an input compares a bounded number of its
// bytes with what was written last.
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

// Which tensors of an operator are read.
enum class Reads : uint8_t {
  nothing,     // none: it makes no values (empty), or only waits for them
  results,     // results: it overwrites what it changes
  all,         // and its inputs
  collective,  // inputs always; its results arrive later
};

// The operator being read, one per thread.
struct Values {
  struct Row {
    Fingerprint fingerprint;
    uint64_t expected;
    Text signature;
    uint16_t position;
    bool unexpected;
  };
  struct Written {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // may be freed before the operator ends
    uint16_t position;
  };

  bool busy = false;
  uint32_t blind = 0;                // frames that are blind
  bool finite = true, known = true;  // all inputs are finite; that is known
  bool unset = false;                // it used uninitialised memory
  std::vector<Row> rows;
  std::vector<Written> written;

  void clear();
};

// Decides by name, once per operator.
Reads reads_of(const std::string& name, bool collective);

// Call when the operator of the frame begins, with its inputs.
void begin_values(Thread& thread, Frame& frame, c10::ArrayRef<const c10::IValue> inputs);

// Call when it ended. Filtered operators are not recorded, but their outputs become unknown.
void end_values(Thread& thread, const Frame& frame, const at::RecordFunction& function,
                bool left_out);

// Inside this frame, a compiled region or an operator under a torch.func transform, tensors may be
// written without a visible operator. Fingerprints are not compared inside it, nor after its end
// with those from before.
void begin_blind(Thread& thread, Frame& frame);
void end_blind(Thread& thread);

}  // namespace lanescope
