"""How far one head over prefix tokens is from a function of one number."""
