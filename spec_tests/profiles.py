"""More or fewer examples than the profile of Hypothesis says, in proportion to it."""

from fractions import Fraction

from hypothesis import settings


def times(factor: Fraction | int, of: settings | None = None) -> settings:
    """A profile, by default the active one, with so many times its examples; at least one."""
    profile = of or settings()
    # Hypothesis leaves the type of its own attribute open.
    examples = int(profile.max_examples)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return settings(profile, max_examples=max(1, int(factor * examples)))
