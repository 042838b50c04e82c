"""Tokens that count how many of them are read, for tests of what grows with a text."""

from typing import Any


class Counted(list[int]):
    """Tokens that count how many of them are read."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.read += len(found) if isinstance(key, slice) else 1
        return found

    def __iter__(self) -> Any:
        self.read += len(self)
        return super().__iter__()
