"""How the manager of `sessions` calls its policy."""

from hypothesis import strategies as st
from sessions import SessionScores
from vllm.v1.kv_offload.base import ReqContext, make_offload_key

from stateful_models.drivers import Driver
from stateful_models.operations import HostEvent


class SessionsDriver(Driver[SessionScores]):
    """Opens a session for each request, tags what it offers, and scores blocks at any time."""

    def host_events(self):
        key = make_offload_key(b"a", 0)
        return st.sampled_from(
            [HostEvent("set_score", (key, 0.5)), HostEvent("set_score", (key, 2))]
        )

    def before_store(self, policy: SessionScores, keys, context: ReqContext):
        policy.open_session(context.req_id)
        policy.tag_keys(keys, context.req_id)

    def looked_up(self, policy: SessionScores, key, found, context):
        policy.record_lookup(key, found)

    def evict(self, policy: SessionScores, count, protected, context):
        return policy.evict(count, protected, context.req_id.endswith("2"))

    def request_finished(self, policy: SessionScores, context: ReqContext):
        policy.close_session(context.req_id)
