"""Makes runs of what other tools recorded: profiler traces and flight-recorder dumps.

    files -> decompress -> json_stream -> events -> chrome -> spill -> calls, nesting, steps
    -> rank_writer

What is read is untrusted: every size is limited before memory is taken, and what cannot be read
becomes one sentence (`Refused`) or is counted in the run's coverage.
"""
