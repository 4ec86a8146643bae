"""What the policies here have in common: nothing of vLLM's."""

from collections.abc import Collection


class Shelf:
    """Status objects by key, in the order in which they are to go."""

    def __init__(self) -> None:
        self.held = {}

    def renew(self, keys) -> None:
        """Let these go last, the first of them after all others."""
        for key in reversed(list(keys)):
            if key in self.held:
                self.held[key] = self.held.pop(key)

    def idle(self, protected: Collection[bytes]) -> list[bytes]:
        """What may go, in order."""
        return [
            key for key, status in self.held.items() if status.ref_cnt == 0 and key not in protected
        ]

    def take(self, keys) -> list:
        """Give up these."""
        return [(key, self.held.pop(key)) for key in keys]
