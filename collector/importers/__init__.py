"""Makes runs of what other tools recorded: profiler traces and flight-recorder dumps.

    files -> formats -> decompress -> json_stream -> events -> chrome_trace -> spill
    -> workers, calls, nesting, steps -> to_tables -> rank_writer -> run_writer

Files are untrusted. Every size is checked before memory is allocated. An unreadable file raises
`ImportRejected`; an unreadable event is counted in the run's coverage. To add a format, see
`base.py`.
"""
