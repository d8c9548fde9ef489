// Starts the process that compacts a run during recording, unless `lanescope record` has done so.
#pragma once

#include <string>

namespace lanescope {

// Sets the shell command that starts it; empty: none. Call between recordings only.
void set_follower(std::string command);

// Starts it without the program noticing; background_compactor.py describes how.
void start_follower() noexcept;

}  // namespace lanescope
