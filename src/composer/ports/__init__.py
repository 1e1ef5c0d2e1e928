"""What the engine needs of the world: protocols, with their contracts in the docstrings."""
