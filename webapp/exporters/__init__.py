"""A run, or a part of it, in other formats. One file per format: run in, file out."""
