"""Tiers: where offloaded chunks live, and which of them a request may load from (TIER-1..3)."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar, NamedTuple

from attrs import field, frozen

from kvoffload.errors import InvalidValueError
from kvoffload.validation import each_instance


class Medium(Enum):
    """What a tier stores chunks on."""

    CPU = "CPU"
    STORAGE = "STORAGE"


class Locality(Enum):
    """Where a tier's storage is, seen from the instance that publishes it."""

    LOCAL = "LOCAL"
    REMOTE = "REMOTE"


class _TierMatcherFields(NamedTuple):
    medium: Medium | None = None
    locality: Locality | None = None


class TierMatcher(_TierMatcherFields):
    """A pattern over a tier's medium and locality; None matches anything (TIER-1).

    A named tuple, so callers may unpack it. Raises InvalidValueError for other types.
    """

    __slots__ = ()

    def __new__(cls, medium: Medium | None = None, locality: Locality | None = None) -> TierMatcher:
        if medium is not None and not isinstance(medium, Medium):
            raise InvalidValueError("medium", medium, "a Medium or None")
        if locality is not None and not isinstance(locality, Locality):
            raise InvalidValueError("locality", locality, "a Locality or None")
        return super().__new__(cls, medium, locality)

    def matches(self, medium: Medium | None, locality: Locality | None) -> bool:
        """Field by field; None on either side is a wildcard (TIER-1)."""
        return (self.medium is None or medium is None or self.medium is medium) and (
            self.locality is None or locality is None or self.locality is locality
        )


@frozen
class TierFilter:
    """Which tiers a request may load from: those that any of `matchers` matches (TIER-2).

    Without matchers it allows nothing. `TierFilter.ALL` allows everything.
    """

    matchers: tuple[TierMatcher, ...] = field(
        default=(), converter=tuple[TierMatcher, ...], validator=each_instance(TierMatcher)
    )

    ALL: ClassVar[TierFilter]

    def allows(self, medium: Medium | None, locality: Locality | None) -> bool:
        """Whether a tier of this medium and locality may be used."""
        return any(matcher.matches(medium, locality) for matcher in self.matchers)


TierFilter.ALL = TierFilter(matchers=(TierMatcher(),))
