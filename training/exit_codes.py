"""End the commands of this folder with a sentence and an exit code, as `app.cli.main` has them."""

import sys
from collections.abc import Callable

from app.errors import InvalidRequest, PacelineError


def ended(run: Callable[[], object], interrupted: str = "interrupted") -> int:
    """Run a command and return its exit code: 0 done, 1 failed, 2 wrong input, 130 interrupted.

    `interrupted` is the text printed at an interrupt.
    """
    try:
        run()
        return 0
    except InvalidRequest as error:
        return _fail(str(error), 2)
    except (PacelineError, OSError) as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return _fail(interrupted, 130)


def _fail(text: str, code: int) -> int:
    print(f"paceline: {text}", file=sys.stderr)
    return code
