"""Effects in order: observe, start, wait, stop. Decisions are made in `pdctl.plan`."""
