"""Capabilities: what an implementer promises beyond the contract of a policy, or declines of it.

Data, stated by the implementer; nothing is guessed from names. A policy states them as the class
attribute `capabilities`, or its driver does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from attrs import evolve, frozen

from kvoffload import CachePolicy
from kvoffload.errors import InvalidValueError
from kvoffload.validation import require_bool, require_int
from stateful_models.models.policy import PolicyModel
from stateful_models.models.s3fifo import S3FIFOModel
from stateful_models.models.sieve import SIEVEModel
from stateful_models.models.slru import SLRUModel
from stateful_models.models.wtinylfu import WTinyLFUModel

_YES_OR_NO: Final = (
    "lru",
    "arc",
    "tail_first",
    "cost",
    "release_order",
    "fresh_reinsertion",
    "key_blind",
)


@frozen(kw_only=True)
class Capabilities:
    """Each field is a promise that is then held to, or a refusal with its reason."""

    may_refuse: str | None = None
    """Why `evict` may answer None although enough chunks are idle (POL-3)."""
    may_evict_more: str | None = None
    """Why `evict` may give more than it was asked for (POL-2), as one that evicts by groups."""
    lru: bool = False
    """Victims go by last use as LRU-1 and LRU-2 say, to the key."""
    arc: bool = False
    """Victims and adaptation are those of ARC-1 to ARC-5, to the key."""
    tail_first: bool = False
    """Among keys last used by one request the tail goes first (LRU-2)."""
    cost: bool = False
    """The cost of evicting follows what changed (POL-8)."""
    release_order: bool = False
    """When and in which order pins are released never decides who goes (POL-9)."""
    fresh_reinsertion: bool = False
    """Removing and inserting a key equals a fresh insertion (POL-6); what was evicted may leave a
    ghost."""
    key_blind: bool = False
    """Choices depend on the order of keys at most: renaming keys in their order changes nothing."""
    growth: int = 4
    """How many keys it holds at most, residents and others, for each chunk of capacity (POL-4)."""
    without_hints: Callable[[int], CachePolicy] | None = None
    """What makes the policy of a given capacity that this one equals where no request has hints."""
    model: Callable[[int], PolicyModel] | None = None
    """What makes the model of a given capacity that predicts its victims, to the key."""

    def __attrs_post_init__(self) -> None:
        for name in ("may_refuse", "may_evict_more"):
            reason: object = getattr(self, name)
            if reason is not None and not isinstance(reason, str):
                raise InvalidValueError(name, reason, "a reason in words, or None")
        for name in _YES_OR_NO:
            require_bool(name, getattr(self, name))
        require_int("growth", self.growth, 0)
        for name in ("without_hints", "model"):
            maker: object = getattr(self, name)
            if maker is not None and not callable(maker):
                raise InvalidValueError(name, maker, "callable, or None")

    @property
    def bound(self) -> str:
        """The declared bound of growth in words."""
        return f"{self.growth} x capacity + {SPARE_KEYS} keys"


SPARE_KEYS: Final = 64
"""How many keys a policy may hold beyond the bound that it declares (POL-4)."""

NONE: Final = Capabilities()
"""Nothing promised, nothing declined."""

_OF_ALL: Final = Capabilities(cost=True, release_order=True)
_OF_MOST: Final = evolve(_OF_ALL, fresh_reinsertion=True, key_blind=True)

BUILT_IN: Final = {
    "lru": evolve(_OF_MOST, lru=True, tail_first=True),
    "arc": evolve(_OF_MOST, arc=True),
    "sieve": evolve(_OF_MOST, model=SIEVEModel),
    "sieve-tail": evolve(_OF_MOST, model=partial(SIEVEModel, tail_first=True)),
    "s3fifo": evolve(_OF_MOST, model=S3FIFOModel),
    "s3fifo-tail": evolve(_OF_MOST, model=partial(S3FIFOModel, tail_first=True)),
    # A sketch hashes the bytes of keys; and a store moves on what the window cannot hold, whether
    # it fails or not.
    "wtinylfu": evolve(_OF_ALL, model=WTinyLFUModel),
    "wtinylfu-tail": evolve(_OF_ALL, model=partial(WTinyLFUModel, tail_first=True)),
    "slru": evolve(_OF_MOST, model=SLRUModel),
    "slru-tail": evolve(_OF_MOST, model=partial(SLRUModel, tail_first=True)),
}
"""What the policies of this project claim, by their registered names."""


def stated_by(target: object) -> Capabilities:
    """The capabilities that a policy, its class or a factory states.

    `may_refuse`, which `CachePolicy` has of its own, counts as stated too. Raises
    InvalidValueError for what is stated in another type.
    """
    stated: object = getattr(target, "capabilities", None)
    if stated is not None and not isinstance(stated, Capabilities):
        raise InvalidValueError("capabilities", stated, "a Capabilities")
    capabilities = NONE if stated is None else stated
    reason: object = getattr(target, "may_refuse", None)
    if reason is not None and not isinstance(reason, str):
        raise InvalidValueError("may_refuse", reason, "a reason in words, or None")
    if capabilities.may_refuse is None and reason is not None:
        return evolve(capabilities, may_refuse=reason)
    return capabilities
