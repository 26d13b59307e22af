"""How many clusters? Every number is tried on points that clients hold out of their training data."""
