"""Programs with faults of inputs, targets and modes."""
