"""The proof that a compiled network computes f."""
