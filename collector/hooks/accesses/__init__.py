"""Records accesses to tensors that no operator makes."""
