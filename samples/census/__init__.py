"""A census of Python's own standard library, taken by a durable workflow.

`analysis` reads one file, `workflow` wires the steps, `render` shows the report, `__main__` runs it all.
"""
