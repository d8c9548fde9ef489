"""Programs with faults between threads and processes."""
