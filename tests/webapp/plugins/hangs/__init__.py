"""Small distributed programs, each with a planted fault, and their clean twins."""
