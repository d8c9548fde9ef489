// The calling thread's Python stack as a text, in the form of hooks/stacks.py.
#pragma once

#include <string>
#include <vector>

#include "journal/string_table.h"

namespace lanescope {

struct StackSettings {
  size_t depth = 15;  // how many frames of the program are kept
  std::vector<std::string>
      inside;  // folders of torch and of the recorder: their frames are left out
  std::vector<std::string> packages;  // folders of installed packages: their frames are kept,
  std::string
      standard;  // though inside the folder of the standard library, whose frames are left out
};

void set_stack_settings(StackSettings settings);

// Returns the stack's text, 0 if Python does not know the thread or no frame of the program is on
// its stack. Takes the interpreter's lock.
Text capture_stack();

}  // namespace lanescope
