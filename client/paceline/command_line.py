"""Start `paceline` of an installed package: the launcher, as `./paceline` of a clone does."""

import os
import signal
import sys
from typing import NoReturn

from paceline.child import launcher


def main() -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the launcher lets it in
    command = [*launcher(), *sys.argv[1:]]
    os.execv(command[0], command)
