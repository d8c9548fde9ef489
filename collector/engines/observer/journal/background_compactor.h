// The process that compacts a run while it is recorded, where no `lanescope record` started one.
#pragma once

#include <string>

namespace lanescope {

// What a shell must do to start it; empty: nothing. Between recordings only.
void set_follower(std::string command);

// Start it, unnoticed by the program; background_compactor.py says how.
void start_follower() noexcept;

}  // namespace lanescope
