"""Mutation testing of the implementation: does anything notice when it is changed?

Each mutant is one small change to one function. The engines of `stateful_models` alone, none of
the example tests, must tell it from the original. What no engine can tell, because nothing that
anybody sees differs, is declared in `equivalent.toml` with its proof.
"""
