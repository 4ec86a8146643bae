"""Engines for what only the reference implementation promises.

How it is built, how it calls policies of every shape, what it does when one breaks its contract,
and that its books notice damage. Each is a function of seeds that raises AssertionError, and
shares no code with what it judges.
"""
