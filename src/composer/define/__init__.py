"""What a user writes: steps, workflows and what a step asks about itself."""
