from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from app.messages import FUSE, mailbox_of
from app.stages.draft.registry import LEARNING
from app.store.protocol import Node


@dataclass(frozen=True, slots=True)
class DrafterPool:
    """The live drafters: models by name with their mailbox, model-free ones at every fuser."""

    models: Mapping[str, str] = field(default_factory=dict)
    model_free: tuple[str, ...] = ()
    core_share: float = 1.0  # 1.0: model drafters run on the verifier's own cores; 0.0: on other machines
    fuser: str = FUSE  # mailbox of the fusion task
    alone: str = FUSE  # of the fuser of what model-free drafters alone draft: the verifier's own, which saves a hop
    readers: frozenset[str] = frozenset()  # drafters that read the target's last hidden state
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by drafter, the mailboxes of all its nodes
    waiting: Mapping[str, int] = field(default_factory=dict)  # by mailbox, the items in it
    away: frozenset[str] = frozenset()  # mailboxes on other machines than the verifier's

    @property
    def known_here(self) -> tuple[str, ...]:
        """Model-free drafters whose part of a tree shows what they draft in the verifier's process."""
        if all(box == self.alone for box in self.models.values()):
            return self.model_free
        return tuple(name for name in self.model_free if name not in LEARNING)

    @classmethod
    def of(
        cls, live: Sequence[Node], tokenizer_sha256: str, model_free: tuple[str, ...], machine: str, mailbox: str
    ) -> Self:
        """Collect the live drafters with this tokenizer, for the verifier of `mailbox` on `machine`.

        Without a fusion task the models are those of one node, which fuses for itself.
        """
        nodes = [node for node in live if node.kind == "draft"]
        boxes = hosts(nodes, tokenizer_sha256)
        if boxes and not any(node.kind == FUSE for node in live):
            one = min(box for found in boxes.values() for box in found)
            boxes = {name: (one,) for name, found in boxes.items() if one in found}
        away = {mailbox_of(node.kind, node.name) for node in nodes if node.info.get("host") != machine}
        return cls(
            models={name: found[0] for name, found in boxes.items()},
            model_free=model_free,
            core_share=1.0 if not nodes or len(away) < len(nodes) else 0.0,
            alone=mailbox,
            readers=frozenset(name for node in nodes for name in node.info.get("readers", ())),
            hosts=boxes,
            waiting={mailbox_of(node.kind, node.name): int(node.info.get("waiting", 0)) for node in nodes},
            away=frozenset(away),
        )

    def allows_models(self, names: Iterable[str] | None) -> bool:
        """Tell whether any model drafter, of `names` if given, may draft."""
        return bool(self.models) if names is None else not self.models.keys().isdisjoint(names)

    def allows_any(self, names: Iterable[str] | None) -> bool:
        return bool(self.models or self.model_free) if names is None else bool(self.allowed(names))

    def allowed(self, names: Iterable[str] | None) -> tuple[str, ...]:
        alive = (*self.models, *self.model_free) if self.models else self.model_free
        return alive if names is None else tuple(name for name in alive if name in set(names))

    def hosts_of(self, name: str) -> tuple[str, ...]:
        return self.hosts.get(name) or (self.models[name],)

    def fuser_of(self, nodes: Collection[str]) -> str:
        """Return where drafts of these nodes are fused: at a lone node, saving a hop."""
        if not nodes:
            return self.alone
        return next(iter(nodes)) if len(set(nodes)) == 1 else self.fuser

    def is_here(self, mailbox: str) -> bool:
        """Tell whether this node takes the verifier's own cores."""
        return self.core_share > 0.0 and mailbox not in self.away

    def mailboxes(self) -> set[str]:
        return {self.fuser, self.alone, *(box for name in self.models for box in self.hosts_of(name))}


def hosts(live: Sequence[Node], tokenizer_sha256: str) -> dict[str, tuple[str, ...]]:
    """Return, by drafter, the mailboxes of its live nodes, the least busy first."""
    found: dict[str, tuple[str, ...]] = {}
    for node in sorted(live, key=lambda node: (node.info.get("waiting", 0), node.name)):
        if node.info.get("tokenizer") == tokenizer_sha256:
            for name in dict.fromkeys(node.info.get("drafters", ())):
                found[name] = (*found.get(name, ()), f"{node.kind}:{node.name}")
    return found
