"""The command line: one file for each command, and nothing that the library lacks."""
