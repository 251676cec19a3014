"""Networks that compute a program step by step, and the proof that it is f."""
