"""Public reports of real bugs, by the short names under which the gallery refers to them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

REPORTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "M1": "vllm-project/vllm#35846",
        "M2": "vllm-project/vllm#54759",
        "M3": "vllm-project/vllm#52227 (also #52022)",
        "M8": "LMCache/LMCache#3884",
        "M13": "LMCache/LMCache#5032",
        "M17": "LMCache/LMCache#987 / #993",
        "M22": "sgl-project/sglang#27108",
        "M25": "sgl-project/sglang#31427 / #26728",
        "M32": "kvcache-ai/Mooncake#1853",
        "M36": "vllm-project/vllm#45757",
        "M43": "NVIDIA/TensorRT-LLM#15018 (issue #12933)",
        "POL1": "vllm-project/vllm#34576",
        "POL2": "vllm-project/vllm#51787",
        "POL3": "vllm-project/vllm#50992",
        "POL4": "vllm-project/vllm#27039 (bot review)",
        "POL6": "openzfs/zfs#10548 (+#8104)",
        "POL12": "redpanda-data/redpanda#31609",
        "POL13": "scalalang2/golang-fifo#3",
        "POL15": "sgl-project/sglang#4987 / #4989",
        "POL17": "LMCache/LMCache#4817",
        "POL20": "vllm-project/vllm#5411 / #7193",
        "POL21": "vllm-project/vllm#46216",
        "POL24": "mahmoud/boltons#55, #21",
        "POL34": "1055373165/ggcache#14",
        "POL35": "hashicorp/golang-lru#182",
        "C1": "LMCache/LMCache#4463 / #4467",
        "C2": "vllm-project/vllm#56772",
        "C7": "vllm-project/vllm#55904 / #55907",
        "E4": "sgl-project/sglang#38486",
        "S1": "vllm-project/vllm#48102",
        "S6": "vllm-project/vllm#49671 (issue #49635)",
        "S10": "vllm-project/vllm#56709 (RFC #56701)",
        "W1": "vllm-project/vllm#28951 (issue #28950)",
        "W2": "vllm-project/vllm#50696",
        "W3": "vllm-project/vllm#46278 (issue #45704)",
        "W4": "vllm-project/vllm#47282 (#47291, #50863)",
        "W5": "NVIDIA/TensorRT-LLM#9056 (issue #8813)",
        "W7": "NVIDIA/TensorRT-LLM#15546",
        "W8": "vllm-project/vllm-ascend#16428",
        "W10": "sgl-project/sglang#36738",
        "W11": "sgl-project/sglang#20611",
    }
)
"""Project and number, as reported; described and shown here in our own words and code."""
