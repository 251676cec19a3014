"""Terms of real functions: equal objects are equal functions."""
