"""Stores: where the log is kept. `base` has the protocol, `open_store` finds the right one for a path or URL."""
