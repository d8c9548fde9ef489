"""Opens, checks and reads a run."""
