"""Checks on a CUDA device: they need torch, numpy, attrs, hypothesis and pytest, and nothing else.

`python -m pytest spec_tests/cuda -q` from the checkout; `python -m spec_tests.cuda` runs them and a
benchmark, and prints a short table. Without a CUDA device they are skipped.
"""
