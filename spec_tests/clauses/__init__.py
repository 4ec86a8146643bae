"""SPEC.md's promises, a test each; every test carries the id of its clause."""
