"""Who drafts at present, and where what they say is fused."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Crew:
    """Who drafts at present: model drafters by name with their node's mailbox, resident ones wherever drafts are fused.

    `share` is 1.0 when the drafters run on the verifier's own cores, 0.0 on other machines. `fuser` is the fusion
    task's mailbox.
    """

    remote: Mapping[str, str] = field(default_factory=dict)
    resident: tuple[str, ...] = ()
    share: float = 1.0
    fuser: str = "fuse"
    readers: frozenset[str] = frozenset()  # drafters that read the target's last hidden state

    def allowed(self, names: Iterable[str] | None) -> tuple[str, ...]:
        """All drafters, or those of them a request named."""
        everyone = (*self.remote, *self.resident)
        return everyone if names is None else tuple(name for name in everyone if name in set(names))

    def fuser_of(self, names: Iterable[str]) -> str:
        """Where the drafts of these drafters are fused: at their node if there is but one, which saves a hop."""
        nodes = {self.remote[name] for name in names if name in self.remote}
        return nodes.pop() if len(nodes) == 1 else self.fuser

    def recipients(self, names: Iterable[str], fuser: str) -> set[str]:
        """The mailboxes a job goes to: the nodes of the drafters it asks, and whoever fuses."""
        return {fuser, *(self.remote[name] for name in names if name in self.remote)}
