"""Hooks devices: streams, Kineto's events, CUDA contexts."""
