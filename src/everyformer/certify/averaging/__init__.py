"""Networks with registers whose attention is a mean."""
