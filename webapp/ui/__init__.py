"""The pages: one file each, with its layout and its callbacks."""
