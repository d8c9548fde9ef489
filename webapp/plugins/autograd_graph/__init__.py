"""Shows the autograd graph, and finds where gradients end."""
