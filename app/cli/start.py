"""Start an installed `paceline`: as ./paceline does, hold an interrupt back until the imports are over."""

import signal


def main() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    from app.cli.main import main as run  # lets it in

    return run()
