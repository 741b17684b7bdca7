"""The runtime: one Session, many conversations."""
