"""Tests of the bridge to vLLM that need no vLLM."""
