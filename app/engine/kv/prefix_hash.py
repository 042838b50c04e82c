"""Name a sequence's full pages: each by a digest of its tenant and all tokens up to the page's end.

Sequences that begin alike have pages of the same names, whose keys and values are the same bits,
since these do not depend on how a prompt was cut into chunks. Tenants share nothing (design D9).
"""

from array import array
from hashlib import blake2b

from app.state import CachedSequence

DIGEST_BYTES = 16


def names(sequence: CachedSequence, first: int, count: int, page_tokens: int) -> list[bytes]:
    """Return the names of the sequence's pages from `first` up to `count` pages.

    The sequence keeps them in `page_names`: its tokens only ever grow, so a name never changes.
    """
    known = sequence.page_names
    for i in range(len(known), count):
        before = known[-1] if known else blake2b(sequence.tenant.encode(), digest_size=DIGEST_BYTES).digest()
        tokens = array("q", sequence.tokens[i * page_tokens : (i + 1) * page_tokens])
        known.append(blake2b(before + tokens.tobytes(), digest_size=DIGEST_BYTES).digest())
    return known[first:count]
