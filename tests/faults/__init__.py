"""The project's own catalogue of faults: programs with one, and twins without."""
