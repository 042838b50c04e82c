"""`paceline`: read the command line, call one function, turn errors into a sentence and an exit code.

Exit codes: 0 done; 1 failed; 2 wrong usage or input; 3 not running; 130 interrupted.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from app.cli.config import add_config
from app.cli.generate import add_generate
from app.cli.keys import add_keys
from app.cli.run import MODULES, add_commands, run_module
from app.config import Settings
from app.errors import InvalidRequest, InvalidSettings, PacelineError, system_message
from app.version import VERSION


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # ./paceline holds it back until here
        if not words:
            _parser().print_help(sys.stderr)
            return 2
        if words[0] in MODULES:
            return run_module(words[0], words[1:])
        arguments = _parser().parse_args(words)
        return int(arguments.run(arguments, _settings(arguments)))
    except (InvalidSettings, InvalidRequest) as error:
        return _fail(str(error), 2)
    except PacelineError as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # `| head`: it has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(system_message(error), 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="paceline",
        description="Serve a large language model faster without changing what it says.",
    )
    parser.add_argument("--version", action="version", version=f"paceline {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    add_generate(commands)
    add_commands(commands)
    add_config(commands)
    add_keys(commands)
    return parser


def _settings(arguments: argparse.Namespace) -> Settings:
    """Read the settings, with the plan of the flag `--plan` in place of theirs. Raises InvalidSettings."""
    settings, plan = Settings.from_env(), getattr(arguments, "plan", None)
    if plan is None:
        return settings
    try:
        return settings.changed(plan=plan)
    except ValidationError as error:
        raise InvalidSettings(f"--plan: {error.errors()[0]['msg']}") from error


def _fail(text: str, code: int) -> int:
    print(f"paceline: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
