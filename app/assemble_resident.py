"""Put the fusion's segment together: resident drafters only, so no torch."""

from app.engine.tokenizer import Tokenizer
from app.following import fetcher
from app.fusing import Fusing
from app.stages.draft.registry import build
from app.store.protocol import Requests


def fusing(tokenizer: Tokenizer, store: Requests) -> Fusing:
    """The fusion task's segment, with every resident drafter."""
    return Fusing(build(), tokenizer.vocab_size, fetcher(store))
