"""Host protocols as data: which calls a manager of some vLLM makes to its policy, and when.

A policy is only meaningful together with the host that calls it, so a trial drives it through one
of these, never makes a call that this host could not make, and says which one it was.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen


@frozen(kw_only=True)
class HostProtocol:
    """The calls that a host makes. `get`, `insert`, `evict`, `remove` belong to every one."""

    name: str
    tells_misses: bool
    """`on_store_miss` once a request and key, before evicting and inserting."""
    tells_accesses: bool
    """`on_request_access` with keys first seen by a request, before the insertion."""
    tells_finish: bool
    """`on_request_finished` once a request and generation."""
    marks: bool
    """`mark_evictable` and `mark_non_evictable`."""
    clears: bool
    """`clear` at a reset; a host without it has no reset."""
    touches_steps: bool
    """`touch` with the keys of a request whenever it is scheduled, decoding included."""


VLLM_033: Final = HostProtocol(
    name="vLLM 0.33",
    tells_misses=True,
    tells_accesses=True,
    tells_finish=True,
    marks=True,
    clears=True,
    touches_steps=False,
)
"""The default: `touch` comes from managers with tiers and from the defaults of other hooks only."""

VLLM_030: Final = HostProtocol(
    name="vLLM 0.24 to 0.30",
    tells_misses=False,
    tells_accesses=False,
    tells_finish=False,
    marks=True,
    clears=True,
    touches_steps=True,
)

VLLM_023: Final = HostProtocol(
    name="vLLM before 0.24",
    tells_misses=False,
    tells_accesses=False,
    tells_finish=False,
    marks=False,
    clears=False,
    touches_steps=True,
)

PROTOCOLS: Final = (VLLM_033, VLLM_030, VLLM_023)
"""All that are known, the newest first."""
