// The observer as torch knows it.
#pragma once

namespace lanescope {

// Observe every operator, autograd node and scope of every thread from now on.
void install();

// No longer; what has begun still ends in order.
void remove();

}  // namespace lanescope
