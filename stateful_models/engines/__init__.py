"""Engines: ways of finding a program that breaks a clause, all over the same operations."""
