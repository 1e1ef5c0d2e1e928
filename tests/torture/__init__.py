"""Composer under real faults: `python -m tests.torture`. Nothing here is collected by pytest."""
