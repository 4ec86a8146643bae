"""The CPU tier: chunks in host memory."""
