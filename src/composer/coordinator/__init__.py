"""The coordinator: loops that keep every run moving, safe on any number of replicas, with no leader.

Each loop looks at what is true in the database, not at what it remembers, so it may run anywhere, twice, and begin
again at any moment. What two of them find at once, the version and the fences of the commit give to one.
"""
