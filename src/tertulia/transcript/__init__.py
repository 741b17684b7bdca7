"""Pure functions over records: no I/O, no clock, total."""
