"""vLLM's policies and its manager on trial, and beside those of kvoffload."""
