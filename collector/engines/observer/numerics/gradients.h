// Norms of an optimizer's gradients, written without a call of Python's for each.
#pragma once

#include <cstdint>

#include "layout.h"

namespace c10 {
struct TensorImpl;
}

namespace lanescope {

// Keeps the gradients that the parameters have, for `write_gradients` on the same thread. Into
// `left` goes how many of them it cannot read, then their positions. Returns how many numbers there
// are to read. With Python's lock held: the program does not replace a gradient meanwhile.
int64_t take_gradients(const c10::TensorImpl* const* parameters, int64_t count, uint32_t* left);

// Writes a record for each of these parameters that was not left, and lets go of the gradients;
// `records` hold what never changes. Needs no lock.
void write_gradients(const layout::Record* records, int64_t start);

}  // namespace lanescope
