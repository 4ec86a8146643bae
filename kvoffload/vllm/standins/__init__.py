"""Stand-ins for vLLM: a policy that was written for it is imported without it.

    with StandIns(find_version("0.30")) as vllm:
        from my_policy import MyPolicy          # its `import vllm...` is answered
        policy = MyPolicy(cache_capacity=4)
        policy.insert(key, vllm.chunk_status(0))

One version is installed at a time, and it answers only for what that version had. `installed()`
is the same over a vLLM that is really there.
"""

from kvoffload.vllm.standins.provider import VLLMProvider as VLLMProvider
from kvoffload.vllm.standins.real import InstalledVLLM as InstalledVLLM
from kvoffload.vllm.standins.real import installed as installed
from kvoffload.vllm.standins.standins import StandIns as StandIns
