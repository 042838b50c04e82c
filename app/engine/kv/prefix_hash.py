"""Name a sequence's full pages by a digest of its tenant (design D9) and all tokens up to the page's end."""

from array import array
from hashlib import blake2b

from app.state import CachedSequence

DIGEST_BYTES = 16


def names(sequence: CachedSequence, first: int, count: int, page_tokens: int) -> list[bytes]:
    known = sequence.page_names
    for i in range(len(known), count):
        before = known[-1] if known else blake2b(sequence.tenant.encode(), digest_size=DIGEST_BYTES).digest()
        tokens = array("q", sequence.tokens[i * page_tokens : (i + 1) * page_tokens])
        known.append(blake2b(before + tokens.tobytes(), digest_size=DIGEST_BYTES).digest())
    return known[first:count]
