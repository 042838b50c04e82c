"""Send fused trees to the verifiers that wait for them."""

from app.messages import ToVerifier, TreeMessage
from workers.office import Office


def send_trees(office: Office, trees: list[tuple[str, TreeMessage]]) -> None:
    """One message a verifier: its sequences become ready together, and go into one batch."""
    by_verifier: dict[str, list[TreeMessage]] = {}
    for mailbox, tree in trees:
        by_verifier.setdefault(mailbox, []).append(tree)
    for mailbox, batch in by_verifier.items():
        office.post(mailbox, [ToVerifier(trees=tuple(batch))])
