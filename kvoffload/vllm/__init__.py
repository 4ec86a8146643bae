"""The bridge to vLLM. Importing it imports nothing of vLLM, and needs none to be installed."""
