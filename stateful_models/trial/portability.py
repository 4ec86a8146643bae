"""Portability: whether a policy that was written for vLLM still loads in each version of it.

It is told apart from the contract, and convicts nobody: a sound policy may load nowhere any more,
and a broken one everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import field, frozen

REMARK: Final = "remark"
FALLBACK: Final = "fallback"
INSTALLED: Final = "installed"
"""In place of a version: the vLLM that is really there."""


@frozen(kw_only=True)
class Obstacle:
    """Something in the way of a policy in one version, and the `edit` that takes it away, in words.

    `kind` is `import`, `fallback`, `base` (it is no subclass of that version's CachePolicy),
    `abstract`, `build`, `signature`, `slot`, `internals`, `round` (a first store, load and eviction
    raised), or `remark`: that is in nobody's way, but worth knowing. `place` is a file and a line.
    """

    kind: str
    what: str
    edit: str = ""
    place: str = ""

    @property
    def grave(self) -> bool:
        """Whether the policy does not work there as long as this is so."""
        return self.kind != REMARK


@frozen(kw_only=True)
class Portability:
    """One version of vLLM and one policy. What nothing came to, for it failed before, is None.

    A version stands for all `releases` that are alike, from its `oldest` minor release on.
    `loads`: they take the class, by the way that they have; `tried_as`: it is the version that the
    policy was recognised as, and was tried with.
    """

    version: str
    oldest: str = ""
    releases: str = ""
    loads: bool = False
    imports: bool = False
    subclass: bool | None = None
    builds: bool | None = None
    fits: bool | None = None
    """Whether its methods take the arguments that they are called with."""
    survives: bool | None = None
    """Whether a first round of storing, loading and evicting raises nothing."""
    obstacles: tuple[Obstacle, ...] = field(default=())
    tried_as: bool = False

    @property
    def installed(self) -> bool:
        """Whether it is about the vLLM that is really there, and not about stand-ins."""
        return self.version == INSTALLED

    @property
    def works(self) -> bool:
        """Whether it loads and nothing is in its way."""
        return self.loads and bool(self.survives) and not self.grave

    @property
    def triable(self) -> bool:
        """Whether there is something that can be called, whatever else is in its way."""
        return self.imports and bool(self.builds) and bool(self.fits)

    @property
    def grave(self) -> tuple[Obstacle, ...]:
        """What is in the way."""
        return tuple(each for each in self.obstacles if each.grave)

    @property
    def fallbacks(self) -> tuple[Obstacle, ...]:
        """Errors of imports that a module caught, so that it has a base of its own now."""
        return tuple(each for each in self.obstacles if each.kind == FALLBACK)


def recognised(rows: Sequence[Portability]) -> Portability | None:
    """The version that a policy is written for, of rows with the newest version first.

    That in which it works; else, of those in which it can be called at all, the one in which
    least is in its way. None if it can be called in none.
    """
    working = next((row for row in rows if row.works), None)
    return working or min(
        (row for row in rows if row.triable),
        key=lambda row: (not row.survives, len(row.grave)),
        default=None,
    )
