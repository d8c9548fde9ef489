"""Analyses gradients: norms by layer, rank and thread; what fails to learn."""
