"""Store rows to learn from: token ids as JSON lines, the target's hidden states in a float16 file beside them.

A line: `d` the domain; `p` the prompt's ids; `g` the ids after it; `t`, if `g` is not the target's own text, the ids
that the target chooses there; `greedy`, whether `g` is the target's argmax everywhere; `k` names the source of the row;
`at` and `n`: the row's states are the n = len(p) + len(g) - 1 rows of the other file (N, d) from `at` on, one for each
position but the last. Without `n`, or with 0, there are none.

Appending survives a kill at any point: states are written before the line that refers to them, and torn ends are cut
off when the file is opened again. The files are JSON and raw numbers, so reading data executes no code.
"""

import fcntl
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from app.errors import InvalidRequest
from app.system import write_whole

HALF = np.dtype("<f2")
LONGEST = 1024  # tokens of a row that is learnt from
HELD_OUT = 16  # one prompt in so many is kept from training, for evaluation


@dataclass(frozen=True, slots=True)
class Row:
    """One text with the target's choices and states: G tokens after a prompt of P."""

    domain: str
    prompt: tuple[int, ...]
    continuation: tuple[int, ...]
    labels: tuple[int, ...]  # the target's choice in place of each of `continuation`; the same if the text is its own
    is_greedy: bool
    states: np.ndarray | None  # (P + G - 1, d) float16: the target's, at every position but the last

    @property
    def tokens(self) -> tuple[int, ...]:
        """Return all of the row's ids, P + G."""
        return self.prompt + self.continuation

    @property
    def digest(self) -> str:
        """Return the prompt's hash, which orders the rows and decides which are held out."""
        return hashlib.sha256(json.dumps([self.domain, self.prompt]).encode()).hexdigest()


def read(paths: Iterable[Path], width: int, vocab_size: int, about: dict[str, str]) -> list[Row]:
    """Read all rows of these files and folders, ordered by digest.

    `width`: the target's d. `about`: values that the JSON beside a data file must have, where there is
    one. Raises InvalidRequest.
    """
    rows = [row for path in paths for file in _files(path) for row in _read_file(file, width, vocab_size, about)]
    if not rows:
        raise InvalidRequest("data", "there is not one row to learn from")
    return sorted(rows, key=lambda row: (row.digest, row.continuation))


def split(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Split rows into those to train on and those held out.

    A prompt's digest decides, so it falls on the same side in every data set, and a drafter that goes on
    from another is evaluated on prompts that neither has learnt. A domain without any held out gives one.
    """
    chosen = {row.digest for row in rows if int(row.digest[:8], 16) % HELD_OUT == 0}
    for domain in {row.domain for row in rows}:
        own = {row.digest for row in rows if row.domain == domain and row.is_greedy}
        if len(own) > 1 and not chosen & own:
            chosen.add(min(own))
    return [row for row in rows if row.digest not in chosen], [row for row in rows if row.digest in chosen]


class RowFile:
    """A file of rows to append to. Opening it cuts off a torn end. One writer at a time."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        """Open or create the file and store `about` beside it. Raises InvalidRequest for a file that was made with
        another `about`, or that another run is writing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lines = path.open("a+b")
        try:
            fcntl.flock(self._lines, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _settle_about(path, about)
        except BlockingIOError as error:
            self._lines.close()
            raise InvalidRequest("data", f"another run is writing {path}; wait for it") from error
        except InvalidRequest:
            self._lines.close()
            raise
        self._states = states_of(path).open("a+b")
        self.done: set[str] = set()  # `k` of the rows that are there
        self._at = 0  # rows of states written
        self._repair()

    def append(
        self,
        key: str,
        domain: str,
        prompt: list[int],
        continuation: list[int],
        states: np.ndarray | None,  # (P + G - 1, d) float
        *,
        is_greedy: bool,
        labels: list[int] | None = None,
    ) -> None:
        """Write a row; it is whole in the file when this returns, or will be cut off as torn."""
        line: dict[str, Any] = {"d": domain, "p": prompt, "g": continuation, "greedy": is_greedy, "k": key}
        if labels is not None:
            line["t"] = labels
        if states is not None:
            self._states.write(states.astype(HALF).tobytes())
            self._states.flush()
            line |= {"at": self._at, "n": len(states), "w": states.shape[1]}
            self._at += len(states)
        self._lines.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._lines.flush()
        self.done.add(key)

    def close(self) -> None:
        """Close both files; another run may write them then."""
        self._states.close()
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repair(self) -> None:
        self._lines.seek(0)
        size, held, whole = states_of(self.path).stat().st_size, 0, 0
        for line in self._lines:
            row = _parsed(line)
            has_states = row is not None and row.get("n", 0) > 0
            end = (row["at"] + row["n"]) * row["w"] * HALF.itemsize if row and has_states else held
            if row is None or not line.endswith(b"\n") or end > size:
                break
            whole, held = whole + len(line), end
            self._at = row["at"] + row["n"] if has_states else self._at
            self.done.add(row.get("k", ""))
        self._lines.truncate(whole)
        self._states.truncate(held)


def states_of(path: Path) -> Path:
    """Return the path of the states that belong to a file of rows."""
    return path.with_suffix(".f16")


def _about_of(path: Path) -> Path:
    return path.with_suffix(".about.json")


def _settle_about(path: Path, about: dict[str, Any]) -> None:
    file = _about_of(path)
    if not file.exists():
        write_whole(file, json.dumps(about, indent=1) + "\n")
    _agree(file, about)


def _agree(file: Path, about: dict[str, Any]) -> None:
    try:
        found = json.loads(file.read_text())
        differing = [name for name, value in about.items() if found.get(name) != value]
    except (ValueError, AttributeError) as error:
        raise InvalidRequest("data", f"{file} is not a JSON object") from error
    if differing:
        raise InvalidRequest("data", f"{file.name} beside the rows says another {', '.join(differing)} than is meant")


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise InvalidRequest("data", f"{path} is no file of rows, nor a folder of .jsonl files")
    return files


def _read_file(path: Path, width: int, vocab_size: int, about: dict[str, str]) -> list[Row]:
    if _about_of(path).exists():
        _agree(_about_of(path), about)
    states = np.zeros((0, width), HALF)
    if states_of(path).exists() and (held := states_of(path).stat().st_size // (HALF.itemsize * width)):
        states = np.memmap(states_of(path), HALF, "r", shape=(held, width))
    rows = []
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, start=1):
        parsed = _parsed(line)
        if parsed is None and number < len(lines):  # the last one may be torn
            raise InvalidRequest("data", f"{path}, line {number}: not a row of d, p, g and greedy")
        row = None if parsed is None else _row(parsed, states, f"{path}, line {number}", vocab_size)
        rows += [row] if row else []
    return rows


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    is_row = isinstance(row, dict) and all(isinstance(row.get(name), list) for name in "pg")
    return row if is_row and isinstance(row.get("d"), str) else None


def _row(parsed: dict[str, Any], states: np.ndarray, place: str, vocab_size: int) -> Row | None:
    """Return None for a row that is too long or empty, or whose states are not all there. Raises InvalidRequest."""
    prompt, continuation, at, n = tuple(parsed["p"]), tuple(parsed["g"]), parsed.get("at", 0), parsed.get("n", 0)
    labels = tuple(parsed.get("t", continuation))
    if not prompt or not continuation or len(prompt) + len(continuation) > LONGEST or at + n > len(states) > 0:
        return None
    if not all(isinstance(id_, int) and 0 <= id_ < vocab_size for id_ in (*prompt, *continuation, *labels)):
        raise InvalidRequest("data", f"{place}: holds tokens that the target does not know")
    if len(labels) != len(continuation) or (n and n != len(prompt) + len(continuation) - 1):
        raise InvalidRequest("data", f"{place}: its parts are not of one length")
    own = states[at : at + n] if n and len(states) else None
    return Row(parsed["d"], prompt, continuation, labels, bool(parsed.get("greedy")), own)
