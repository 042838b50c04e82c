"""Let steps of several verifiers follow each other through the stages of one simulated target.

A stage holds an equal part of the layers and works on one step at a time, so a lone step takes as
long as on one device, and as many steps as stages pass at once.
"""


class PipelineDevice:
    """A target's devices in a row (`Device`); drafters have their own. Steps come in order of time."""

    def __init__(self, stages: int) -> None:
        self._free_s = [0.0] * stages

    def verify(self, at_s: float, rows: float, seconds: float, reading_s: float) -> float:
        now_s, part_s = at_s, (seconds + reading_s) / len(self._free_s)
        for stage, free_s in enumerate(self._free_s):
            now_s = self._free_s[stage] = max(now_s, free_s) + part_s
        return now_s - at_s

    def draft(self, at_s: float, tokens: int, seconds: float) -> float:
        return seconds
