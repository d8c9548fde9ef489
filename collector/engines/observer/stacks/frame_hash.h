// Distinguishes Python stacks without holding the interpreter's lock.
//
// While a thread runs an operator, its own Python frames do not change. So the thread may read
// them: each is a code object and a position in it. A hash of both, frame by frame, identifies the
// stack; capture_stack() makes its text once, with the lock held. The offsets of the fields are not
// part of Python's API and differ between versions. `find_raw_frames` tries the known layouts on
// the calling thread's stack and compares with what Python reports; without a match this is off.
#pragma once

#include <cstdint>

#include "journal/string_table.h"

namespace lanescope {

// Tries the layouts on a thread that Python calls from, with the lock held. True if one fits.
bool find_raw_frames();

// Returns a hash of the calling thread's innermost frames; 0 without frames or a layout that fits.
uint64_t raw_stack();

// Makes the hashes of all stacks others, once code objects may be freed whose addresses were in
// them.
void forget_raw_stacks();

}  // namespace lanescope
