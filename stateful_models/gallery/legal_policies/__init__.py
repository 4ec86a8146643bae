"""Legal policies that are unlike LRU: each is odd in one way, and breaks no clause.

They are written as an author would write them, one a file. A trial that convicts one of them is
wrong. `stateful_models.gallery.policies` is the index.
"""
