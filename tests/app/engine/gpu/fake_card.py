"""A fake GPU's memory, for tests of how it is shared out."""


class FakeCard:
    """A device of `total` bytes; what is freed stays with the allocator until that settles."""

    def __init__(self, total: int, weights: int, left_over: int = 0) -> None:
        """Hold the weights; `left_over`: the bytes of blocks that were freed before."""
        self.held: dict[object, int] = {"weights": weights}
        self.kept_blocks = left_over
        self._total = total

    def settle(self) -> None:
        """Give the kept blocks back."""
        self.kept_blocks = 0

    def free_bytes(self) -> int:
        """Return the bytes that nothing holds; a kept block is not free."""
        return self._total - sum(self.held.values()) - self.kept_blocks

    def lend(self, nbytes: int) -> None:
        """Let a step take memory and free it: kept blocks are taken before the device is asked."""
        self.kept_blocks = max(self.kept_blocks, nbytes)

    def release(self, name: object) -> None:
        """Free what `name` holds."""
        self.kept_blocks += self.held.pop(name)
