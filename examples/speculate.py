"""Speculate for one request, round by round: draft, fuse, verify, commit.

python examples/speculate.py ["a prompt"]     in a clone, with the environment that ./paceline makes
"""

import os
import sys

from app.config import THREAD_ENVIRONMENT, Settings

os.environ.update({**THREAD_ENVIRONMENT, **os.environ})  # before torch is loaded

from app.assembly.drafter import drafters_over
from app.assembly.local import load_models
from app.messages import DraftJob
from app.request import GenerateRequest
from app.stages.admit import admit
from app.stages.commit import conclude
from app.stages.draft.protocol import Context
from app.stages.draft.registry import build
from app.stages.fuse import fuse
from app.stages.verify import verify
from app.state import CachedSequence, Sequence

DRAFT_TOKENS = 8


def main(prompt: str) -> int:
    """Generate a text and print what became of each round's draft."""
    settings = Settings.from_env()
    models = load_models(settings)
    drafters = [*drafters_over(models.guessers), *build()]  # one model, and n-gram drafters
    names = tuple(drafter.name for drafter in drafters)
    request = GenerateRequest(prompt=prompt, max_tokens=64)
    record = admit(request, models.tokenizer, settings, request_id="example", now_s=0.0)
    sequence = Sequence(record, CachedSequence.of(record, list(record.prompt_ids)))
    rounds, reason = 0, None
    while reason is None:
        length, start = len(sequence.tokens), len(record.prompt_ids)
        context = Context(record.id, record.tenant, sequence.tokens, start, DRAFT_TOKENS, record.sampling)
        drafts = [draft for drafter in drafters for draft in drafter.draft([context])]
        job = DraftJob(
            request_id=record.id, tenant=record.tenant, fuser="", verifier="", base=length, start=length, tokens=(),
            prompt_length=start, max_draft_tokens=DRAFT_TOKENS, drafters=names, sampling=record.sampling, due_s=0.0,
        )  # fmt: skip
        (tree,) = fuse([(job, drafts)], models.tokenizer.vocab_size)

        entry = sequence.entry(length, tree)
        assert models.runner.try_reserve(entry), "no room in the KV cache"
        (verdict,) = verify([entry], models.runner.launch([entry]).collect())
        assert verdict is not None
        models.runner.accept(entry, verdict.path)

        conclusion = conclude(sequence, verdict)
        sequence.tokens.extend(conclusion.tokens)
        reason, rounds = conclusion.finish_reason, rounds + 1
        text = models.tokenizer.decode(conclusion.tokens)
        print(f"{len(tree):2} drafted, {len(verdict.path)} accepted: {text!r}")
    print(f"{sequence.generated} tokens in {rounds} rounds")
    models.runner.release(sequence.kv)
    return 0


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:]) or "Write a Python class for a stack."))
