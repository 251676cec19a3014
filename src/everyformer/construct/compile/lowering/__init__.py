"""From a program to heads, units, registers and blocks."""
