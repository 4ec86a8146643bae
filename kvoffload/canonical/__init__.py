"""Canonical pages: one layout of a block's bytes, whatever the parallel configuration."""
