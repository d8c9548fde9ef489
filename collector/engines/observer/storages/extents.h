// Where the memory of parameters and of their gradients is, without objects of Python for them.
#pragma once

#include <c10/core/TensorImpl.h>

#include <cstdint>

namespace lanescope {

// Fills `into`, which holds zeros, with seven numbers for each parameter: its extent, its
// gradient's, and the gradient's address. Needs Python's lock. False while an assignment is in
// progress (`assigning` counts them, if known): a gradient may be one that is being freed.
bool extents(const c10::TensorImpl* const* parameters, int64_t count, const int32_t* assigning,
             int64_t* into);

}  // namespace lanescope
