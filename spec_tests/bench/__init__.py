"""Speed and memory beside others, as ratios; `python -m spec_tests.bench --help` tells how.

Nothing here is judged: figures depend on the machine, so none of them fails a build.
"""
