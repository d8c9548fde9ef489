"""One file per question: a run in, tables and findings out; no plotting, no Dash."""
