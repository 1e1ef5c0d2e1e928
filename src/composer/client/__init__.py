"""Clients: start runs, follow them, stop them, resume them."""
