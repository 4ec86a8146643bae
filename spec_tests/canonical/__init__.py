"""Tests of the judge of page mappings, and of the reference by it."""
