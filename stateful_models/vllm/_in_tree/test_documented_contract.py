# SPDX-License-Identifier: Apache-2.0
"""What the docstrings of CachePolicy promise, of every policy that is registered: calls
are random, the same each time, as CPUOffloadingManager makes them and by itself."""

import random

import pytest

from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus
from vllm.v1.kv_offload.cpu.policies.factory import CachePolicyFactory

SIZES, LENGTH = [1, 2, 3, 4] * 100 + [60] * 4, 120  # of caches, and of programs
KEYS = [make_offload_key(b"k%03d" % (n // 2), n % 2) for n in range(3 * max(SIZES))]
CALLS = ["prepare_store", "complete_store", "prepare_load", "complete_load"] * 6
CALLS += ["touch", "on_request_finished"] * 3 + ["reset_cache"]
# By their ref_cnt, the keys that such a call is about; else any, resident or not.
ABOUT = {"complete_store": [-1], "complete_load": range(1, 99)}
ABOUT["prepare_load"] = range(99)


class Checked:
    """Passes calls on to a policy, and judges it. Refuses `spared` evictions itself."""

    def __init__(self, policy, spared):
        self.policy, self.spared, self.get = policy, spared, policy.get
        self.chunks, self.calls, self.victims, self.problem = {}, [], [], ""

    def evict(self, n, protected):
        self.calls.append(f"evict({n}, protected={protected})")
        idle = {key for key, chunk in self.chunks.items() if chunk.ref_cnt == 0}
        spare = len(self.victims) in self.spared
        victims = None if spare else self.policy.evict(n, set(protected))
        self.victims.append(victims and [key for key, _ in victims])
        self.calls[-1] += f" -> {self.victims[-1]}"
        if victims is None:
            assert spare or len(idle - protected) < n, f"{n} could have been evicted"
            return None
        assert len(victims) == len(dict(victims)) == n, f"not exactly {n} are evicted"
        assert idle - protected >= {*dict(victims)}, "protected, in use or absent"
        for key, chunk in victims:
            assert self.chunks.pop(key) is chunk, f"{key!r} has the chunk of another"
        return victims

    def __getattr__(self, name):
        def call(*args):
            told = [getattr(a, "req_id", getattr(a, "chunk_id", a)) for a in args]
            self.calls.append(f"{name}({', '.join(map(repr, told))})")
            getattr(self.policy, name)(*args)
            if name == "insert":
                self.chunks[args[0]] = args[1]
            for key in {"remove": args, "clear": [*self.chunks]}.get(name, ()):
                del self.chunks[key]

        return call


def call_alone(policy, size, call, keys, ctx, success=True):
    """Does to a policy what the manager does, for a request that ends with the call."""
    chunks, new = policy.chunks, [key for key in keys if key not in policy.chunks]
    seen = [key for key in keys if key in new or chunks[key].is_ready]
    for key in keys if call == "prepare_load" else ():
        if chunks[key].ref_cnt == 0:
            policy.mark_non_evictable(key)
        chunks[key].ref_cnt += 1
    if seen and call.startswith("prepare"):
        if new:
            policy.on_store_miss(new, ctx)
        policy.on_request_access(seen, ctx)
        free = [*{*range(size)} - {chunk.chunk_id for chunk in chunks.values()}]
        lacking = len(new) - len(free)
        if 0 < lacking <= sum(chunk.ref_cnt == 0 for chunk in chunks.values()):
            free += [c.chunk_id for _, c in policy.evict(lacking, {*keys}) or ()]
        for key in (inserted := new if len(free) >= len(new) else []):
            policy.insert(key, ChunkStatus(free.pop()), ctx)
        groups = [g for g in ([k for k in seen if k[-1] == n] for n in (0, 1)) if g]
        policy.on_request_finished(groups, {*inserted}, {*seen} - {*new}, ctx)
    for key in keys if call.startswith("complete") else ():
        if success:
            chunks[key].ref_cnt = max(0, chunks[key].ref_cnt - 1)
            if chunks[key].ref_cnt == 0:
                policy.mark_evictable(key)
        else:
            policy.remove(key)


def play(name, alone, size, program, spared=()):
    """What was seen of a new policy: its calls and victims, and what went wrong."""
    policy = CachePolicyFactory.get_cache_policy_cls(name)(cache_capacity=size)
    manager, checked, contexts = CPUOffloadingManager(size), Checked(policy, spared), {}
    manager._policy = checked
    try:
        for number, (call, request, named, success) in enumerate(program):
            whose = number if alone else request
            ctx = contexts.setdefault(whose, ReqContext(f"r{number}"))
            for key in named if request else ():
                ctx.set_offload_key_position(key, int(key[1:4]) + 1)
            ref_cnts = {key: chunk.ref_cnt for key, chunk in checked.chunks.items()}
            about = ABOUT.get(call, [None, *range(-1, 99)])
            keys = [key for key in named if ref_cnts.get(key) in about]
            args = [keys, ctx, success] if call == "complete_store" else [keys, ctx]
            args = {"on_request_finished": [ctx], "reset_cache": []}.get(call, args)
            if alone and call in CALLS[:4]:
                call_alone(checked, size, call, *args)
            else:
                getattr(manager, call)(*args)
            if len(args) < 2:  # this request is over, or all
                contexts = {r: c for r, c in contexts.items() if args and c is not ctx}
            for key in {*named, *ref_cnts}:
                assert policy.get(key) is checked.chunks.get(key), f"{key!r} is astray"
    except Exception as error:
        checked.problem = f"{type(error).__name__}: {error}".partition("\n")[0]
    return checked


def judge(name, alone, size, program, repeats):
    """Plays a program; if choices repeat, also without what must leave no trace."""
    seen = play(name, alone, size, program)
    refused = [n for n, keys in enumerate(seen.victims) if keys is None]
    resets = [n for n, call in enumerate(program, 1) if call[0] == "reset_cache"]
    if repeats and not seen.problem:
        if play(name, alone, size, program, refused).victims != seen.victims:
            seen.problem = "an eviction that was refused changes later ones"
        later = play(name, alone, size, program[max(resets, default=0) :]).victims
        if seen.victims[len(seen.victims) - len(later) :] != later:
            seen.problem = "what was before a clear changes later evictions"
    return seen


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in_manager"])
@pytest.mark.parametrize("name", CachePolicyFactory._registry)
def test_documented_contract(name, alone):
    programs = []
    for seed, size in enumerate(SIZES):
        rng, program = random.Random(seed), []
        for call in rng.choices(CALLS, k=LENGTH):
            keys = sorted(rng.sample(KEYS[: 2 * size + 2], rng.randint(1, size + 1)))
            program.append((call, rng.randrange(3), keys, rng.random() < 0.8))
        programs.append((name, alone, size, program))
    repeats = all(play(*each).victims == play(*each).victims for each in programs)
    for _, _, size, program in programs:
        seen = judge(name, alone, size, program, repeats)
        for n in [*reversed(range(LENGTH))] * 2 if seen.problem else ():
            shorter = program[:n] + program[n + 1 :]
            if (found := judge(name, alone, size, shorter, repeats)).problem:
                seen, program = found, shorter
        if seen.problem:
            text = "\n  ".join([f"{name}, {size} chunks: {seen.problem}", *seen.calls])
            pytest.fail(text.replace(r"\x00\x00\x00\x0", "/"), pytrace=False)
