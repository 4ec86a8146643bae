"""A policy model behind the calls of a policy, so that steps can be held against it."""

from __future__ import annotations

from kvoffload.keys import OffloadKey
from stateful_models import operations as op
from stateful_models.models.policy import PolicyModel
from stateful_models.steps import Found, Result, Victim, Victims


class PolicyOracle:
    """Predicts what a policy answers to each call of its host."""

    def __init__(self, model: PolicyModel) -> None:
        self.model = model
        self.slots: dict[OffloadKey, int] = {}
        self.ends: dict[op.RequestId, dict[OffloadKey, int]] = {}

    def predict(self, operation: op.Operation) -> Result:
        """Perform an operation, and say what comes of it. No call of a policy may raise."""
        model = self.model
        match operation:
            case op.SetPositions(request, positions):
                self.ends.setdefault(request, {}).update(positions)
            case op.Get(key):
                return Found(self.slots[key]) if key in self.slots else None
            case op.Insert(key, slot, request):
                self.slots[key] = slot
                model.insert(key, request, self.ends.get(request, {}))
            case op.Remove(key):
                del self.slots[key]
                model.remove(key)
            case op.TouchKeys(_, keys):
                model.touch(keys)
            case op.Evict(count, protected):
                victims = model.evict(count, protected)
                if victims is not None:
                    return Victims(tuple(Victim(key, self.slots.pop(key)) for key in victims))
            case op.StoreMiss(_, keys):
                model.miss(keys)
            case op.RequestAccess(request, keys):
                model.access(keys, request, self.ends.get(request, {}))
            case op.RequestFinished(request, groups, inserted, reused):
                model.finish(groups, inserted, reused, self.ends.get(request, {}))
            case op.MarkEvictable(key):
                model.mark_evictable(key)
            case op.MarkNonEvictable(key):
                model.mark_non_evictable(key)
            case op.Clear():
                self.slots.clear()
                model.clear()
            case _:
                pass
        return None
