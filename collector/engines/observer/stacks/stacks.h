// The calling thread's Python stack as a text, in the form of hooks/stacks.py.
#pragma once

#include <string>
#include <vector>

#include "journal/string_table.h"

namespace lanescope {

struct StackSettings {
  size_t depth = 15;                  // frames of the program that are kept
  std::vector<std::string> inside;    // folders of torch and of the recorder: left out
  std::vector<std::string> packages;  // folders of installed packages: kept,
  std::string standard;               // though they lie below the standard library's: left out
};

void set_stack_settings(StackSettings settings);

// 0 where the thread is not one of Python's, or no frame of the program is on its stack. Takes the
// interpreter's lock.
Text capture_stack();

}  // namespace lanescope
