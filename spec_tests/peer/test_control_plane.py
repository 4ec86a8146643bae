"""The control plane of the vLLM that is there, as it is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kvoffload.vllm.control_plane import ControlPlane, load_control_plane

PROGRAM = """
import sys
from pathlib import Path
from kvoffload.vllm.control_plane import load_control_plane, unload_control_plane

root = Path(sys.argv[1])
plane = load_control_plane(root)
assert "torch" not in sys.modules, "torch was imported, or its stand-in stayed"
manager = plane.manager_class(num_chunks=1, cache_policy="arc")
key = plane.make_offload_key(b"hash", 0)
assert manager.prepare_store([key], plane.context_class("r")).store_spec.block_ids.tolist() == [0]
unload_control_plane()
assert not [name for name in sys.modules if name.split(".")[0] == "vllm"]
assert load_control_plane(root) is not plane
"""


def test_the_version_is_the_one_that_the_peer_is_of(control_plane: ControlPlane) -> None:
    assert control_plane.version == "0.33.0"
    assert str(control_plane).startswith("vLLM 0.33.0 at ")


def test_the_rest_of_vllm_is_not_there(control_plane: ControlPlane) -> None:
    assert "vllm.config" in control_plane.stood_in
    real = [name for name in sys.modules if name.startswith("vllm.v1.kv_offload")]
    assert real
    assert not set(real) & set(control_plane.stood_in)


def test_it_is_loaded_once(control_plane: ControlPlane) -> None:
    assert load_control_plane(control_plane.root) is control_plane
    assert load_control_plane(control_plane.root / "." / "vllm" / "..") is control_plane
    # What is loaded counts as what is there.
    assert load_control_plane() is control_plane


def test_neither_torch_nor_the_rest_of_vllm_is_needed(control_plane: ControlPlane) -> None:
    command = [sys.executable, "-c", PROGRAM, str(control_plane.root)]
    done = subprocess.run(command, cwd=Path.cwd(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
