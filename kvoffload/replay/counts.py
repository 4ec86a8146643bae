"""What a replay counts while it runs."""

from __future__ import annotations

from attrs import define


@define
class Counts:
    """Numbers of one run, growing.

    `refused`: offers that were answered with None, each time counted; `given_up`: ranges that
    were never stored in the end. `peak_pinned`: the most chunks pinned at one time.
    `late_arrivals`: requests whose time lies before that of the one ahead of them in the file.
    """

    requests: int = 0
    blocks: int = 0
    block_hits: int = 0
    tokens: int = 0
    token_hits: int = 0
    evicted: int = 0
    refused: int = 0
    given_up: int = 0
    steps: int = 0
    stored: int = 0
    failed_stores: int = 0
    waits: int = 0
    resets: int = 0
    events: int = 0
    peak_pinned: int = 0
    late_arrivals: int = 0
