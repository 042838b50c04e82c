"""Leave fusion out: reduce a fused tree to one drafter's draft."""

from collections.abc import Callable

from msgspec import structs

from app.messages import TreeMessage

Shape = Callable[[TreeMessage], TreeMessage]  # changes a tree before a verifier sees it


def lone(tree: TreeMessage) -> TreeMessage:
    """Reduce a tree to the drafter that promises the most tokens: a tree without fusion."""
    promise: dict[str, float] = {}
    for names, survival in zip(tree.proposers, tree.survival, strict=True):
        for name in names:
            promise[name] = promise.get(name, 0.0) + survival
    if not promise:
        return tree
    best = max(sorted(promise), key=promise.__getitem__)
    nodes = [i for i, names in enumerate(tree.proposers) if best in names]  # with every node its parent
    places = {0: 0} | {node + 1: place for place, node in enumerate(nodes, start=1)}
    return structs.replace(
        tree,
        tokens=tuple(tree.tokens[i] for i in nodes),
        parents=tuple(places[tree.parents[i]] for i in nodes),
        survival=tuple(tree.survival[i] for i in nodes),
        proposers=((best,),) * len(nodes),
    )
