"""Fast ways to run a network: literal on CPU and GPU, and folded."""
