"""Send fused trees to the verifiers that wait for them."""

from app.mail_zz import trees_by_mailbox
from app.messages import TreeMessage
from workers.deployment import Office


def send_trees(office: Office, trees: list[tuple[str, TreeMessage]]) -> None:
    """One message a verifier."""
    for mailbox, message in trees_by_mailbox(trees).items():
        office.post(mailbox, [message])
