"""Node kinds: one module each, with the same pure functions: activate, apply, stop, explain."""
