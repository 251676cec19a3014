"""Numbers that do not lie: exact rationals and roundings with a direction."""
