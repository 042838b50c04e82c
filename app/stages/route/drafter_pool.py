"""Who drafts at present, and where what they say is fused."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class DrafterPool:
    """Who drafts at present: model drafters by name with their node's mailbox, resident ones wherever drafts are fused.

    `share` is 1.0 when the drafters run on the verifier's own cores, 0.0 on other machines. `fuser` is the fusion
    task's mailbox. `hosts` has all the nodes of the drafters that several host; `waiting`, by mailbox, the items that
    wait there; `away` the mailboxes on other machines than the verifier's.
    """

    models: Mapping[str, str] = field(default_factory=dict)
    model_free: tuple[str, ...] = ()
    core_share: float = 1.0
    fuser: str = "fuse"
    readers: frozenset[str] = frozenset()  # drafters that read the target's last hidden state
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    waiting: Mapping[str, int] = field(default_factory=dict)
    away: frozenset[str] = frozenset()

    def allowed(self, names: Iterable[str] | None) -> tuple[str, ...]:
        """All drafters, or those of them a request named."""
        everyone = (*self.models, *self.model_free)
        return everyone if names is None else tuple(name for name in everyone if name in set(names))

    def hosts_of(self, name: str) -> tuple[str, ...]:
        """The mailboxes of the nodes that host a model drafter."""
        return self.hosts.get(name) or (self.models[name],)

    def fuser_of(self, nodes: Collection[str]) -> str:
        """Where the drafts of these nodes are fused: there if it is but one, which saves a hop."""
        return next(iter(nodes)) if len(set(nodes)) == 1 else self.fuser

    def is_here(self, mailbox: str) -> bool:
        """Does this node take the verifier's own cores?"""
        return self.core_share > 0.0 and mailbox not in self.away

    def mailboxes(self) -> set[str]:
        """Of everybody."""
        return {self.fuser, *(box for name in self.models for box in self.hosts_of(name))}
