"""Hooks functions of torch that are easily called in a wrong way: scalers, states, datasets."""
