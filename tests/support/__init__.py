"""What tests of several folders share: starting programs, recording them, made-up runs."""
