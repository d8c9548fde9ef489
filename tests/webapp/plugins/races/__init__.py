"""Programs whose threads share tensors, with and without what should order them."""
