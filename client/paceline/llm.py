"""Generate texts in a program."""

import os
import random
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event
from typing import Any, Self

from paceline.answers import Answer, Comparison
from paceline.child import Child
from paceline.errors import Error
from paceline.server import Server

Conversation = Sequence[Mapping[str, Any]]  # messages with `role` and `content`
Prompt = str | Conversation
TOGETHER = 64  # prompts sent at once: as many sequences as a verifier runs on a CPU


class LLM:
    """A model that generates texts: a server of this program's own, or, with `url`, one that runs.

    `model` is a known name, a folder, a GGUF file or a hub's OWNER/NAME, `drafters` names and folders, `()` for none.
    Further arguments are the server's settings by name (`paceline config` lists them), as `plan="off"`. Its first lines
    go to standard error unless `quiet`. The server ends with `close`, the `with` block, the program. Raises Error.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        drafters: Sequence[str | os.PathLike[str]] | None = None,
        url: str | None = None,
        api_key: str | None = None,
        quiet: bool = False,
        **settings: object,
    ) -> None:
        given = {"model": model, "drafters": drafters, **settings}
        given = {name: value for name, value in given.items() if value is not None}
        self._child: Child | None = None
        self._is_closed = False
        api_key = api_key or os.environ.get("PACELINE_API_KEY")
        if url is not None:
            if given:
                raise Error(f"{', '.join(given)}: the server at url has its own; leave one of both out")
            self._server = Server(url, api_key, lambda: None)
            self._server.check_ready()
            return
        if isinstance(drafters, str | os.PathLike):
            raise Error("drafters: must be a list of names or folders")
        if not str(given.get("model", "default")):
            raise Error("model: must not be empty")
        self._child = Child({**given, "drafters": drafters or ["none"]} if drafters is not None else given, quiet)
        self._server = Server(self._child.url, api_key, self._child.lost)

    @property
    def url(self) -> str:
        """Return the server's address, for other clients: OpenAI's API is at `url + "/v1"`."""
        return self._server.url

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        max_tokens: int = 256,
        temperature: float = 0.0,
        seed: int | None = None,
        **fields: Any,
    ) -> list[Answer]:
        """Answer prompts side by side, in their order; the first error cancels the rest.

        A prompt is a text, or a list of messages. `fields` are others of `POST /api/generate`, as `raw=True`.
        """
        fields |= {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        bodies = [{**fields, **_prompt(prompt)} for prompt in _listed(prompts)]
        stop = Event()
        with ThreadPoolExecutor(max(1, min(TOGETHER, len(bodies)))) as pool:
            futures = [pool.submit(self._answer, body, stop) for body in bodies]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [future.result() for future in futures]

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = 256,
        temperature: float = 0.0,
        seed: int | None = None,
        **fields: Any,
    ) -> "Stream":
        """Answer one prompt piece by piece."""
        fields |= {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        return Stream(self._pieces({**fields, **_prompt(prompt)}, Event()))

    def compare(self, prompt: Prompt, **fields: Any) -> Comparison:
        """Answer one prompt with speculation, then without.

        A prompt that the server has answered before is drafted from that answer, and so faster than another one.
        """
        fields["seed"] = random.getrandbits(62) if fields.get("seed") is None else fields["seed"]
        with_, without = (self.generate([prompt], **fields, speculation=on)[0] for on in (True, False))
        return Comparison(with_, without)

    def close(self) -> None:
        """End the server that this object started. Nothing happens to one that it found."""
        self._is_closed = True
        if self._child is not None:
            self._child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, body: dict[str, Any], stop: Event) -> Answer:
        pieces = Stream(self._pieces(body, stop))
        for _ in pieces:
            pass
        assert pieces.answer is not None
        return pieces.answer

    def _pieces(self, body: dict[str, Any], stop: Event) -> Generator[str, None, Answer]:
        if self._is_closed:
            raise Error("this LLM is closed")
        return Answer.of((yield from self._server.generate(body, stop)))


class Stream(Iterator[str]):
    """Iterate over a text's pieces; `answer` is the whole after the last one. `close` cancels the request."""

    def __init__(self, pieces: Generator[str, None, Answer]) -> None:
        self._pieces = pieces
        self.answer: Answer | None = None

    def __next__(self) -> str:
        try:
            return next(self._pieces)
        except StopIteration as end:
            self.answer = end.value or self.answer
            raise

    def close(self) -> None:
        self._pieces.close()


def _listed(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    if not isinstance(prompts, Sequence):
        raise Error("prompts: must be a text, or a list of texts and conversations")
    is_one = isinstance(prompts, str) or (len(prompts) > 0 and all(isinstance(one, Mapping) for one in prompts))
    return [prompts] if is_one else prompts  # type: ignore[list-item,return-value]


def _prompt(prompt: Prompt) -> dict[str, Any]:
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if isinstance(prompt, Sequence) and all(isinstance(message, Mapping) for message in prompt):
        return {"messages": list(prompt)}
    raise Error(f"a prompt is a text or a list of messages, and not a {type(prompt).__name__}")
