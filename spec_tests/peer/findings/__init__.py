"""Tests that could be vLLM's own; each fails on 0.33.0, as it says.

They are quoted in docs/vllm-manager.md, and need pytest and vLLM only.
"""
