"""A small trace as a file: sessions whose turns grow, in Mooncake's format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

REQUESTS = 300
BLOCK_TOKENS = 512


def write_trace(path: Path, seed: int = 0) -> Path:
    """Write it to `path`."""
    random = np.random.default_rng(seed)
    turns = [0] * 12
    lines: list[str] = []
    for number in range(REQUESTS):
        session = int(random.integers(len(turns)))
        turns[session] = turns[session] % 6 + 1
        blocks = [1, 2, *(100 * session + 10 + i for i in range(2 * turns[session]))]
        line = {
            "timestamp": 1000 * number,
            "input_length": BLOCK_TOKENS * len(blocks) - int(random.integers(BLOCK_TOKENS)),
            "output_length": 10,
            "hash_ids": blocks,
        }
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines) + "\n")
    return path
