"""Host protocols as data: which calls a manager of some vLLM makes to its policy, and when.

A policy is only meaningful together with the host that calls it, so a trial drives it through one
of these, never makes a call that this host could not make, and says which one it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from attrs import frozen

from kvoffload.vllm.versions import VERSIONS, VLLMVersion, find_version


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


def _calls(version: VLLMVersion) -> dict[str, bool]:
    methods = {method.name for method in version.methods}
    return {
        "tells_misses": "on_store_miss" in methods,
        "tells_accesses": "on_request_access" in methods,
        "tells_finish": "on_request_finished" in methods,
        "marks": "mark_evictable" in methods,
        "clears": "clear" in methods,
        "touches_steps": version.touches_steps,
    }


def _protocols() -> Iterator[HostProtocol]:
    """One for all versions in a row that call alike, named by the first and the last of them."""
    for _, group in groupby(VERSIONS, _calls):
        alike = list(group)
        first, last = alike[-1].minors[0], alike[0].name
        name = f"vLLM {last}" if first == last else f"vLLM {first} to {last}"
        yield HostProtocol(name=name, **_calls(alike[0]))


PROTOCOLS: Final = tuple(_protocols())
"""All that are known, the newest first."""


def protocol_of(version: VLLMVersion) -> HostProtocol:
    """By which protocol a version calls its policy."""
    calls = _calls(version)
    return next(
        host for host in PROTOCOLS if {name: getattr(host, name) for name in calls} == calls
    )


VLLM_033: Final = protocol_of(find_version("0.33"))
"""The default: `touch` comes from managers with tiers and from the defaults of other hooks only."""

VLLM_032: Final = protocol_of(find_version("0.32"))
"""Without `on_request_access`."""

VLLM_030: Final = protocol_of(find_version("0.30"))
"""Touches whenever a request is scheduled, and says nothing of requests."""

VLLM_023: Final = protocol_of(find_version("0.23"))
"""Without marks."""

VLLM_021: Final = protocol_of(find_version("0.21"))
"""Without `clear`."""
