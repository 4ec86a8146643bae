"""Tests that need torch; `nox -s torch` runs them, the others stand in for its tensors."""
