"""Run a worker whose fuser hands on one draft a round: `python -m lab.hosts.without_fusion ROLE --node NAME`.

The ablation that no setting names: of what the drafters of a round say only the draft that promises
the most tokens reaches the verifier, as in the arms of that name in process and in simulation.
"""

import sys
from unittest.mock import patch

from app.fuser.fuser import Fuser
from app.messages import TreeMessage
from lab.cooperate.lone import lone
from workers.run import main


class LoneFuser(Fuser):
    """A fuser that reduces each tree to the drafter that promises the most tokens."""

    def collect(self, now_s: float) -> list[tuple[str, TreeMessage]]:
        """Close the rounds that are complete or due, with one drafter's draft each."""
        return [(mailbox, lone(tree)) for mailbox, tree in super().collect(now_s)]


def run(argv: list[str] | None = None) -> int:
    """Serve one role, as `workers.run` does, with that fuser; return the exit code."""
    with patch("app.fuser.fuser.Fuser", LoneFuser):  # the class is named when a worker builds its fuser
        return main(argv)


if __name__ == "__main__":
    sys.exit(run())
