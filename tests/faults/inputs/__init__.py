"""Programs with faults of models, losses, optimizers and data."""
