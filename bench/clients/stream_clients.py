"""Read many event streams at once in one thread and check each token.

The first reader of a request sends it, the others follow it from its start. HTTP/1.0, so that a
body ends with its connection and is not cut into chunks. A stream that breaks is not resumed here:
it is an error.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from bench.clients.load import prompt

SILENCE_S = 60.0  # until an answer's head, or the next event or heartbeat: these come every 10 s
HEARTBEAT = ": still here"
LONGEST = 2**24  # bytes of an event


@dataclass(frozen=True, slots=True)
class Read:
    """Hold what one stream delivered."""

    tokens: int
    heartbeats: int
    seconds: float  # from its opening to its end
    error: str | None = None  # also: a token that was missing, came twice or was another one


class Fleet:
    """A constant number of streams of the server at `url`, opened again as they end until `end` is
    called.

    All methods run in one event loop.
    """

    def __init__(self, url: str, streams: int, readers: int, max_tokens: int) -> None:
        """Hold `streams` in all, `readers` of each request, maybe fewer of the last one."""
        where = urlsplit(url)
        self._host, self._port = str(where.hostname), int(where.port or 80)
        self._streams, self._readers, self._max_tokens = streams, readers, max_tokens
        self._numbers = count()
        self._running: set[str] = set()  # ids of the requests
        self._is_over = False
        self.open = 0
        self.reads: list[Read] = []

    async def run(self) -> None:
        """Keep the streams open until `end` is called and all have ended."""
        left = [min(self._readers, self._streams - i) for i in range(0, self._streams, self._readers)]
        async with asyncio.TaskGroup() as group:
            for readers in left:
                group.create_task(self._again_and_again(readers))

    async def end(self) -> None:
        """Cancel the running requests, so that their streams end in order."""
        self._is_over = True
        await asyncio.gather(*(self.ask("DELETE", f"/api/requests/{one}") for one in [*self._running]))

    async def ask(self, method: str, path: str) -> tuple[int, float]:
        """Make a small call; return its status and the seconds it took."""
        began_s = time.monotonic()
        async with self._call(method, path) as (status, _, reader):
            await reader.read()
        return status, time.monotonic() - began_s

    async def _again_and_again(self, readers: int) -> None:
        await self._request(readers)
        while not self._is_over:
            await self._request(readers)

    async def _request(self, readers: int) -> None:
        """Send one request and read all its streams to their ends."""
        _, text = prompt(next(self._numbers), None)
        wanted = {"prompt": text, "max_tokens": self._max_tokens, "stream": True}
        known: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        first = asyncio.create_task(self._read("POST", "/api/generate", wanted, known.set_result))
        either: list[asyncio.Future[Any]] = [first, known]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        found: list[tuple[Read, list[int]]] = []
        if known.done():
            request_id = known.result()
            self._running.add(request_id)
            others = [self._read("GET", f"/api/requests/{request_id}/stream") for _ in range(readers - 1)]
            found = await asyncio.gather(first, *others)
            self._running.discard(request_id)
        else:
            found = [await first]
            await asyncio.sleep(1.0)  # refused: not at once again
        for read, tokens in found:
            is_other = read.error is None and tokens != found[0][1]
            self.reads.append(Read(read.tokens, read.heartbeats, read.seconds, "other tokens") if is_other else read)

    async def _read(
        self,
        method: str,
        path: str,
        wanted: dict[str, Any] | None = None,
        on_id: Callable[[str], None] = lambda request_id: None,
    ) -> tuple[Read, list[int]]:
        """Read one stream to its end; return the reading and the token ids."""
        tokens: list[int] = []
        kinds: Counter[str] = Counter()
        began_s = time.monotonic()
        try:
            async with self._call(method, path, wanted) as (status, headers, reader):
                if status != 200:
                    raise ValueError(f"answered {status}: {(await reader.read()).decode()}")
                self.open += 1
                on_id(headers.get("x-request-id", ""))
                try:
                    await _take(reader, tokens, kinds)
                finally:
                    self.open -= 1
            error = None
        except (OSError, EOFError, ValueError) as what:  # TimeoutError is an OSError
            error = f"{type(what).__name__}: {what}"
        return Read(len(tokens), kinds[HEARTBEAT], time.monotonic() - began_s, error), tokens

    @asynccontextmanager
    async def _call(
        self, method: str, path: str, wanted: dict[str, Any] | None = None
    ) -> AsyncIterator[tuple[int, dict[str, str], asyncio.StreamReader]]:
        """Yield status, headers and the reader of the body."""
        body = b"" if wanted is None else json.dumps(wanted).encode()
        head = [f"{method} {path} HTTP/1.0", f"Host: {self._host}:{self._port}", f"Content-Length: {len(body)}"]
        head += ["Content-Type: application/json"] * bool(body)
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=LONGEST)
        try:
            writer.write("\r\n".join([*head, "", ""]).encode() + body)
            async with asyncio.timeout(SILENCE_S):
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            pairs = (line.partition(":") for line in lines)
            yield int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}, reader
        finally:
            writer.close()


async def _take(reader: asyncio.StreamReader, tokens: list[int], kinds: Counter[str]) -> None:
    """Read events to the end. Raises ValueError unless every token came once, and the end with the
    same ones."""
    while not kinds["end"]:
        async with asyncio.timeout(SILENCE_S):
            block = (await reader.readuntil(b"\n\n")).decode()
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line)
        kinds[fields.get("event", block.strip())] += 1
        if "data" in fields:
            tokens += _new(fields["event"], json.loads(fields["data"]), tokens)


def _new(kind: str, data: dict[str, Any], tokens: list[int]) -> list[int]:
    if kind == "error":
        raise ValueError(data["error"]["message"])
    if kind == "end":
        if data["token_ids"] != tokens:
            raise ValueError(f"{len(tokens)} tokens came of {len(data['token_ids'])}, or other ones")
        return []
    if data["offset"] != len(tokens):
        raise ValueError(f"token {data['offset']} where {len(tokens)} was due")
    return list(data["tokens"])
