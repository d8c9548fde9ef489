"""Hooks training: modules, backward, optimizers, gradients, data."""
