"""Records a PyTorch run."""
