"""Programs with faults between threads, processes, workers and tasks."""
