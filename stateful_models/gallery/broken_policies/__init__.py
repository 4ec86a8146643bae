"""Broken cache policies: one family of mistakes a module, each class wrong in exactly one way.

`stateful_models.gallery.policies` is the index. What is right is in `base`, `ranked`
and `adaptive`; the others change as little of it as makes the mistake.
"""
