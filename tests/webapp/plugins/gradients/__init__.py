"""Programs whose parameters do or do not learn, and what is found in them."""
