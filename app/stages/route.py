"""Choose who works on a request: the verifier that will hold its KV cache, the drafters that guess for it."""

from collections.abc import Sequence as Listed

from app.store.nodes import Node


def verifier(live: Listed[Node]) -> Node | None:
    """The verifier with the fewest sequences, by its own last word; None when none lives."""
    return min(live, key=lambda node: (node.info.get("sequences", 0), node.name), default=None)


def drafters(live: Listed[Node], tokenizer_sha256: str) -> dict[str, str]:
    """Drafter name -> mailbox of the model drafters alive that speak the target's tokens.

    One node for each name: the one that has the fewest jobs waiting.
    """
    chosen: dict[str, str] = {}
    for node in sorted(live, key=lambda node: (node.info.get("waiting", 0), node.name)):
        if node.info.get("tokenizer") == tokenizer_sha256:
            for name in node.info.get("drafters", ()):
                chosen.setdefault(name, f"{node.kind}:{node.name}")
    return chosen
