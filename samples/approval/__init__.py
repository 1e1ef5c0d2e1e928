"""A document that waits for a person, with a deadline, and goes up the line when nobody answers."""
