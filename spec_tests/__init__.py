"""Tests of kvoffload and stateful_models, by clause."""
