"""Parse server-sent events in tests, by the rules of the format alone."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class ServerEvent(NamedTuple):
    """Hold one dispatched event."""

    kind: str
    data: Any
    last_id: str


def parse(lines: Iterable[str]) -> Iterator[ServerEvent]:
    """Yield the events of lines without their line ends; comments are skipped."""
    kind, data, last_id = "", [], ""
    for line in lines:
        if not line:
            if data:
                yield ServerEvent(kind, json.loads("\n".join(data)), last_id)
            kind, data = "", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "data":
            data.append(value)
        elif name == "id":
            last_id = value


def parse_text(text: str) -> list[ServerEvent]:
    """List the events of a whole response."""
    return list(parse(text.split("\n")))
