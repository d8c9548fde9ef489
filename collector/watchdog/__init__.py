"""Watches a process for progress and dumps its stacks when it hangs."""
