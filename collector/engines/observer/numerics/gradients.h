// Writes the norms of an optimizer's gradients without a Python call for each.
#pragma once

#include <cstdint>

#include "layout.h"

namespace c10 {
struct TensorImpl;
}

namespace lanescope {

// Keeps the gradients of these parameters for `write_gradients` on the same thread. Fills `left`
// with how many of them it cannot read, then their positions. Returns how many numbers are to be
// read. Needs Python's lock, so that the program cannot replace a gradient at the same time.
// Returns -1 while an assignment is in progress (`assigning` counts them, if known): a gradient may
// be one that is being freed.
int64_t take_gradients(const c10::TensorImpl* const* parameters, int64_t count,
                       const int32_t* assigning, uint32_t* left);

// Writes a record for each parameter that it can read, and releases the gradients. `records` hold
// the fields that never change. Needs no lock.
void write_gradients(const layout::Record* records, int64_t start);

}  // namespace lanescope
