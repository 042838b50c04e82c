"""Make loads: when requests come and how long they are, the same for the same seed.

A trace file is CSV with a header, or JSON lines, perhaps compressed (.gz): COLUMNS, the timestamp in seconds, or the
columns of the Azure LLM inference traces, whose TIMESTAMP is a date and time.
"""

import csv
import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.errors import InvalidRequest

COLUMNS = ("timestamp", "prompt_tokens", "output_tokens")
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request's time, and its lengths in tokens; `prompt_tokens` None: the prompt's own."""

    at_s: float
    output_tokens: int
    prompt_tokens: int | None = None


def poisson(rate: float, seconds: float, output_tokens: int, seed: int = 0) -> list[Arrival]:
    """Return independent arrivals, `rate` of them a second on average."""
    return gamma(rate, seconds, output_tokens, seed, variation=1.0)


def gamma(rate: float, seconds: float, output_tokens: int, seed: int = 0, variation: float = 3.0) -> list[Arrival]:
    """Return arrivals with gamma-distributed gaps of this coefficient of variation; 1 is Poisson, more is bursty."""
    draw, shape = random.Random(seed), 1.0 / variation**2
    return [*_until(seconds, output_tokens, lambda: draw.gammavariate(shape, 1.0 / (rate * shape)))]


def ramp(rates: list[float], seconds: float, output_tokens: int, seed: int = 0) -> list[Arrival]:
    """Return Poisson arrivals whose rate goes in straight lines from each of `rates` to the next, in equal times."""
    draw, top = random.Random(seed), max(rates)
    kept = []
    for arrival in _until(seconds, output_tokens, lambda: draw.expovariate(top)):
        place = arrival.at_s / seconds * (len(rates) - 1)
        low = min(int(place), len(rates) - 2)
        rate = rates[low] + (rates[low + 1] - rates[low]) * (place - low)
        if draw.random() * top < rate:  # thinning
            kept.append(arrival)
    return kept


def steps(rates: list[float], seconds: float, output_tokens: int, seed: int = 0) -> list[Arrival]:
    """Return Poisson arrivals at each of `rates` in turn, in equal times: a burst is low, high, low."""
    each = seconds / len(rates)
    return [
        Arrival(i * each + arrival.at_s, arrival.output_tokens)
        for i, rate in enumerate(rates)
        for arrival in (poisson(rate, each, output_tokens, seed + i) if rate > 0.0 else [])
    ]


def trace(path: Path, speed: float = 1.0, longest: int = 4096) -> list[Arrival]:
    """Read a recorded load, to be replayed `speed` times as fast. Raises InvalidRequest."""
    try:
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
        lines = [line for line in text.splitlines() if line.strip()]
        rows = map(json.loads, lines) if text.lstrip().startswith("{") else csv.DictReader(lines)
        found = [_row(row) for row in rows]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest("trace", f"{path} holds no rows of {', '.join(COLUMNS)}: {error!r}") from error
    if not found:
        raise InvalidRequest("trace", f"{path} is empty")
    start = min(at for at, _, _ in found)
    return sorted(
        (Arrival((at - start) / speed, min(output, longest), prompt) for at, prompt, output in found),
        key=lambda arrival: arrival.at_s,
    )


def window(arrivals: list[Arrival], seconds: float, rate: float, number: int = 0) -> list[Arrival]:
    """Return consecutive arrivals of a load, faster or slower, such that `rate` of them a second fill `seconds`.

    `number`: which of the load's windows of so many arrivals, counted from 0; after the last comes the first.
    Raises InvalidRequest where the load has too few.
    """
    count = round(seconds * rate)
    if not 1 < count < len(arrivals):
        raise InvalidRequest("trace", f"{count} arrivals are wanted of {len(arrivals)}")
    first = number % ((len(arrivals) - 1) // count) * count
    found, end_s = arrivals[first : first + count], arrivals[first + count].at_s
    start_s = found[0].at_s
    return [replace(one, at_s=(one.at_s - start_s) * seconds / (end_s - start_s)) for one in found]


def _row(row: dict[str, Any]) -> tuple[float, int, int]:
    is_azure = AZURE[0] in row
    at, prompt, output = (row[name] for name in (AZURE if is_azure else COLUMNS))
    at, prompt, output = _seconds(at) if is_azure else float(at), int(prompt), int(output)
    if not (prompt >= 1 and output >= 1 and -1e12 < at < 1e12):
        raise ValueError(f"{row} is no request")
    return at, prompt, output


def _seconds(date: str) -> float:
    """Return the seconds of a date and time with up to nine decimals of a second, which has no zone."""
    whole, _, part = date.partition(".")
    return datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp() + float(f"0.{part or 0}")


def _until(seconds: float, output_tokens: int, gap: Callable[[], float]) -> Iterator[Arrival]:
    at_s = gap()
    while at_s < seconds:
        yield Arrival(at_s, output_tokens)
        at_s += gap()
