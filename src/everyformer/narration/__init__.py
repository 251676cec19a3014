"""A proof told at one input: every step with the numbers of this network."""
