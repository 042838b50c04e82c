"""Check a worker for a container's health check: `python -m workers.healthcheck ROLE NODE`.

Exit status 0 if it has a heartbeat and recent progress; else 1, and the reason on stderr.
"""

import sys

from app.config import Settings
from app.errors import PacelineError
from app.local.health import live, standstill


def main(argv: list[str] | None = None) -> int:
    kind, name = sys.argv[1:3] if argv is None else argv
    try:
        settings = Settings.from_env()
        if settings.redis_url is None:
            return _no("PACELINE_REDIS_URL is not set")
        nodes = live(settings.redis_url, settings.namespace, settings.lease_s)
    except PacelineError as error:
        return _no(str(error))
    problem = standstill(name, [node for node in nodes if (node.kind, node.name) == (kind, name)])
    return 0 if problem is None else _no(problem)


def _no(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
