"""`python -m workers.alive ROLE NODE`: does this worker live and get on? For a container's health check.

Exit status 0 if its heartbeat is in Redis and its last progress is not long ago; else 1, and why on stderr.
"""

import sys
import time

from app.config import Settings
from app.errors import PacelineError
from app.local.health import PROGRESS_S
from app.store.connect import connect
from app.store.nodes import Nodes


def main(argv: list[str] | None = None) -> int:
    """Look once."""
    kind, name = sys.argv[1:3] if argv is None else argv
    settings = Settings.from_env()
    if settings.redis_url is None:
        return _no("PACELINE_REDIS_URL is not set")
    client = connect(settings.redis_url)
    try:
        nodes = Nodes(client, settings.namespace, lease_s=settings.lease_s).live(kind)
    except PacelineError as error:
        return _no(str(error))
    finally:
        client.close()
    node = next((node for node in nodes if node.name == name), None)
    if node is None:
        return _no(f"{name} has no heartbeat")
    age_s = time.time() - node.progress_s
    return _no(f"{name} has made no progress for {age_s:.0f} s") if age_s > PROGRESS_S else 0


def _no(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
