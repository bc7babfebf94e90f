"""The topology file: schema, loading with line and column, all errors at once."""
