"""What needs vLLM's own control plane; the nox session `peer` gets it and runs this.

`KVOFFLOAD_PEER_ROOT` names the folder that holds `vllm`. Without it nothing here is collected.
"""
