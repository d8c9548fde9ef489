"""Programs of two ranks with faults between them."""
