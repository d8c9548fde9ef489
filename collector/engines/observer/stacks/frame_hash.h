// Tells Python stacks apart without holding the interpreter's lock.
//
// While a thread runs an operator, the frames it came from stay as they are: nobody else changes
// them. So the thread may read its own, each a code object and a position in it. What is read only
// names the stack (a hash of both, frame by frame); its text is made once, with the lock, by
// capture_stack(). Where the fields lie is not part of Python's interface and differs between
// versions: `find_raw_frames` tries the known layouts on the calling thread's own stack, against what
// Python itself says, and without a match this is off.
#pragma once

#include <cstdint>

#include "journal/string_table.h"

namespace lanescope {

// Try the layouts, on a thread that Python calls from, with the lock held. Whether one fits.
bool find_raw_frames();

// A hash of the calling thread's innermost frames; 0: it has none, or no layout fits.
uint64_t raw_stack();

}  // namespace lanescope
