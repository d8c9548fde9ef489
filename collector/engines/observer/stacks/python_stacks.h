// Has Python write the stacks of all its threads, while they run on.
#pragma once

namespace lanescope {

// `signal` is one that faulthandler has been registered for. May be called in a signal's handler.
// Nobody stops the threads: one that ends in that instant leaves frames that are no longer there.
// Then what has been written by then is all there is, and the process goes on.
void write_python_stacks(int signal);

}  // namespace lanescope
