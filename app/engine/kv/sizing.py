"""Size a verifier's KV cache by the free memory if the settings do not."""

from pathlib import Path

from app.config import Settings

PAGE_TOKENS = 16  # of a page; the least that the kernels take, so the least memory lost in a last page
CPU_PART = 4  # one in so many of the bytes available: other processes run beside a verifier
GPU_PART = 0.9  # of the bytes free beside weights and the largest steps; the rest is for steps of further sizes
UNKNOWN_BYTES = 3 * 2**29  # where the system does not say what is available
SLACK_TOKENS = 256  # beyond the longest sequence, for its tree and the forks of it
MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def longest_tokens(context_tokens: int, settings: Settings) -> int:
    return min(context_tokens, settings.max_prompt_tokens + settings.max_tokens)


def kv_bytes(available: int | None, part: float, sequence_bytes: int, max_sequences: int) -> int:
    """Return `part` of what is available, at least one longest sequence, at most all that run at once."""
    wished = UNKNOWN_BYTES if available is None else int(available * part)
    return max(sequence_bytes, min(wished, sequence_bytes * max_sequences))


def available_bytes() -> int | None:
    """Respect the system's and the container's limits; None if unknown."""
    known = [found for found in (_system_bytes(), _container_bytes()) if found is not None]
    return min(known, default=None)


def _system_bytes() -> int | None:
    if not MEMINFO.exists():
        return None
    fields = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in MEMINFO.read_text().splitlines()}
    return fields.get("MemAvailable")


def _container_bytes() -> int | None:
    limit, used = CGROUP / "memory.max", CGROUP / "memory.current"
    if not (limit.exists() and used.exists()) or not limit.read_text().strip().isdigit():
        return None
    return max(0, int(limit.read_text()) - int(used.read_text()))
