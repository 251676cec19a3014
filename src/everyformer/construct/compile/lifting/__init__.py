"""From the recorded lines of f to a program of steps over tokens."""
