"""Programs whose parameters do or do not learn, and the findings about them."""
