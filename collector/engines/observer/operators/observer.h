// Registers the observer with torch.
#pragma once

namespace lanescope {

// Observes every operator, autograd node and scope of every thread from now on.
void install();

// Stops observing. Events already open are still closed.
void remove();

}  // namespace lanescope
