"""SQuAD 1.1: windows of contexts, their answers, and the official metric."""
