"""A sequence nobody asked for: what models are measured and checked with."""

from app.messages import Record, Sampling, Speculation
from app.state import Sequence


def probe(length: int, vocab_size: int) -> Sequence:
    """Tokens from all over the vocabulary."""
    tokens = [(i * 7919 + 13) % vocab_size for i in range(length)]
    record = Record(
        id="probe",
        prompt_ids=tuple(tokens),
        max_tokens=1,
        eos_ids=(),
        sampling=Sampling(),
        speculation=Speculation(),
        created_s=0.0,
    )
    return Sequence(record, tokens)
