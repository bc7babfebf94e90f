"""How things look: tables, live display, colours, JSON, error text. The only place that imports rich."""
