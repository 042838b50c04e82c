"""Run one host's part of a verifier that vLLM divides over hosts; the first host has the verifier itself."""

import multiprocessing
import os
import socket
import time
from threading import Thread
from typing import NoReturn

from vllm.config import VllmConfig
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from app.errors import TargetLost
from app.logs import STARTING

LOOK_S = 5.0


def run_part(config: VllmConfig) -> NoReturn:
    """Serve the first host's part. Raises TargetLost where a process here has ended."""
    first = config.parallel_config.master_addr, config.parallel_config.master_port
    STARTING.info("joining the part at %s:%d", *first)
    Thread(target=_end_with, args=(first,), daemon=True).start()
    executor = MultiprocExecutor(config, monitor_workers=False)
    STARTING.info("has joined the part at %s:%d", *first)
    executor.start_worker_monitor(inline=True)
    raise TargetLost("a process of vLLM here has ended")


def _end_with(first: tuple[str, int]) -> None:
    """End this process once the first host's part is gone, which vLLM's processes would wait for without an end."""
    was_there = False
    while True:
        try:
            socket.create_connection(first, timeout=LOOK_S).close()
            was_there = True
        except OSError as error:
            if was_there:
                STARTING.critical("the part at %s:%d is gone: %s", *first, error)
                for child in multiprocessing.active_children():
                    child.kill()
                os._exit(1)
        time.sleep(LOOK_S)
