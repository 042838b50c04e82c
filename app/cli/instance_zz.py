"""Which instance a command means when it was not told."""

from pathlib import Path

from app.errors import InstanceError
from app.local.instance import DEFAULT, Instance, State, running


def find(folder: Path, name: str | None) -> tuple[Instance, State | None]:
    """The named instance; without a name the default one if it runs, else the only one that runs."""
    if name is None:
        name = _meant(running(folder))
    instance = Instance(folder, name)
    return instance, instance.running()


def _meant(found: dict[str, State]) -> str:
    if DEFAULT in found or not found:
        return DEFAULT
    if len(found) > 1:
        raise InstanceError(f"several instances run: {', '.join(found)}; say which with --instance")
    return next(iter(found))
