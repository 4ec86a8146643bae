"""The contract of kvoffload made executable: operations, models, invariants and machines.

Everything here but `stateful_models.machines` runs without Hypothesis. Start with
`stateful_models.watch` for a manager of your own, with `stateful_models.machines` for a cache
policy, and with `docs/invariants.md` for a promise of your own.
"""
