// Makes Python write the stacks of all its threads, while they continue to run.
#pragma once

namespace lanescope {

// `signal` is one that faulthandler has been registered for. Safe to call in a signal handler.
// Threads are not stopped: if one ends at that instant, its frames are freed while they are read.
// Then the dump ends there, and the process continues.
void write_python_stacks(int signal);

}  // namespace lanescope
