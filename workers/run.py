"""Run one worker process of a deployment until SIGTERM: `python -m workers.run ROLE --node NAME`.

Roles: control, fuse, draft, verify, beat, and engine: a verifier and its drafters in one. Settings come from
PACELINE_*. Thread settings of numpy and torch must be in the environment before they are loaded.
"""

import argparse
import logging
import os
import sys

from app import logs
from app.config import THREAD_ENVIRONMENT, Settings
from app.errors import PacelineError
from workers.log_redaction import redact_celery_log

ROLES = ("control", "fuse", "draft", "verify", "engine", "beat")
log = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="workers.run", description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--node", help="this worker's name (default: ROLE-1)")
    args = parser.parse_args(argv)
    for name, value in THREAD_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    node = args.node or f"{args.role}-1"
    try:
        settings = Settings.from_env()
        logs.configure(settings.model_copy(update={"node": node}))
        redact_celery_log()
        from workers.bootstrap import serve  # loads numpy

        return serve(args.role, node, settings)
    except PacelineError as error:
        log.error("%s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
