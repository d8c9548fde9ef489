"""Hooks graphs: autograd, torch.fx, calls of compiled code."""
