"""Make tiny random models, drafters of every behaviour, and the whole pipeline around them, without files."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
import transformers
from msgspec.structs import replace
from transformers import AutoModelForCausalLM, PreTrainedModel

from app.answer_form import Thinking
from app.assembly.verifier import verifier_over
from app.config import KVDtype, Settings
from app.drafter.drafter import DrafterNode, JobBatch
from app.drafter.model import ModelDrafter
from app.drafter.replicas import Fetch, fetcher
from app.drafter.token_fusion import TokenFusion
from app.engine.cpu.choose_forward import choose_forward
from app.engine.cpu.forward import Forward
from app.engine.cpu.runner import ModelRunner
from app.engine.early_exit.controller import EarlyExitController
from app.engine.kv.pages import bytes_per_page
from app.engine.step_costs import StepCosts
from app.engine.text.tokenizer import Tokenizer
from app.fuser.fuser import Fuser
from app.messages import Draft, DraftJob, Record
from app.pipeline import LocalPipeline, SentTree, draft_and_fuse, run_round
from app.policy import Policy
from app.request import ChatMessage, Conversation
from app.speculation.drafter_pool import DrafterPool
from app.stages.draft.protocol import Context, Drafter
from app.state import BatchEntry, CachedSequence, Guess, Tree, page_numbers
from app.state import Sequence as State
from app.store.memory import MemoryStore
from app.verifier.measured_target import MeasuredTarget
from app.verifier.metrics import VerifierMetrics
from tests.records import draft_job as draft_job
from tests.records import record as record

torch.set_num_threads(1)  # on matrices this small a second thread only costs

VOCAB = 61  # odd and no multiple of anything
PAGE_TOKENS = 16
FLAT = {1: 10.0, 4096: 10.0}  # seconds by rows: rows are free and drafts too, so all drafts are verified

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2, "head_dim": 32},
    "qwen2": {"num_key_value_heads": 1, "hidden_size": 128},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 32},
    "mistral": {"num_key_value_heads": 2, "head_dim": 32, "sliding_window": 9},
    "gemma2": {
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": 9,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 5.0,
        "query_pre_attn_scalar": 16,
    },
    "phi3": {"num_key_value_heads": 4, "pad_token_id": 0},
    "gpt2": {},
    "gpt_neox": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "pad_token_id": 0},
    "falcon": {},
    "bloom": {},
}
OF_EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "sliding_window": None}
}  # not for own engines


def tiny(family: str = "llama", *, seed: int = 0, vocab_size: int = VOCAB, **overrides: Any) -> PreTrainedModel:
    """Make a model of two layers with random weights, so large that its text depends on all its context."""
    config = transformers.AutoConfig.for_model(
        family,
        **{
            "vocab_size": vocab_size,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 512,
            "bos_token_id": None,
            "eos_token_id": None,
            "tie_word_embeddings": False,
            **(FAMILIES | OF_EXPERTS)[family],
            **overrides,
        },
    )
    with torch.random.fork_rng():
        model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 1:
                weight.add_(noise, alpha=0.1)
            elif any(part in name for part in ("embed", "wte", "wpe")):  # small, so that the layers decide
                weight.copy_(noise * 0.1)
            else:
                weight.copy_(noise * 2 * weight.shape[-1] ** -0.5)
    return model.eval()


def runner(
    forward: Forward, *, pages: int = 64, page_tokens: int = PAGE_TOKENS, kv_dtype: KVDtype = "float32"
) -> ModelRunner:
    """Make a runner over a model's forward, with exactly `pages` pages."""
    kv_bytes = pages * bytes_per_page(*forward.shape, page_tokens, kv_dtype)
    return ModelRunner(forward, kv_bytes=kv_bytes, page_tokens=page_tokens, shares=True, kv_dtype=kv_dtype)


def served(family: str = "llama", *, pages: int = 64, page_tokens: int = PAGE_TOKENS, **overrides: Any) -> ModelRunner:
    """Make a tiny model, ready to run."""
    return runner(choose_forward(tiny(family, **overrides)), pages=pages, page_tokens=page_tokens)


def sequence(tokens: Sequence[int], **rest: Any) -> State:
    """Make a sequence that is all prompt, nothing of it cached."""
    made = record(tokens, **rest)
    return State(made, CachedSequence.of(made, list(tokens)))


def cached(tokens: Sequence[int], **rest: Any) -> CachedSequence:
    """Make the same for engine and drafters."""
    return sequence(tokens, **rest).kv


def tree(tokens: Sequence[int], parents: Sequence[int] | None = None, proposer: str = "test") -> Tree:
    """Make a tree of falling survival; a chain unless parents are given."""
    size = len(tokens)
    return Tree(
        list(tokens),
        list(range(size)) if parents is None else list(parents),
        [0.99**i for i in range(1, size + 1)],
        [(proposer,)] * size,
    )


def work(state: State | CachedSequence, start: int, end: int | None = None, drafts: Tree | None = None) -> BatchEntry:
    """Make the batch entry of the tokens `start ... end - 1`, and of a tree below the last of them."""
    end = len(state.tokens) if end is None else end
    if isinstance(state, State):
        return replace(state.entry(end, drafts), start=start, tokens=state.tokens[start:end])
    return BatchEntry(state, start, state.tokens[start:end], drafts or Tree(), final=end == len(state.tokens))


class Characters:
    """A tokenizer without a file: token i is the character chr(97 + i), so every text is as long as its ids."""

    byte_ids: frozenset[int] = frozenset()

    def __init__(self, vocab_size: int = VOCAB, eos_ids: tuple[int, ...] = (), context_tokens: int = 256) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = eos_ids
        self.context_tokens = context_tokens

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """Return a token a character."""
        return [ord(character) - 97 for character in text]

    def chat(self, messages: Sequence[ChatMessage], most: int | None = None, field: str = "messages") -> list[int]:
        """Return the contents between the tokens 0 and 1."""
        return [0, *self.encode("".join(message.content for message in messages)), 1]

    def conversation(
        self, conversation: Conversation, most: int | None = None, field: str = "messages"
    ) -> tuple[list[int], Thinking]:
        """Return as `chat` does."""
        return self.chat(conversation.messages or (), most, field), Thinking.NO

    def prefix_ids(self, prefix: str) -> list[int]:
        """Return a token a character."""
        return self.encode(prefix)

    def decode(self, ids: Sequence[int]) -> str:
        """Return a character a token."""
        return "".join(chr(97 + id_) for id_ in ids)


class EvenAndOdd(Characters):
    """A tokenizer whose every grammar is the same: tokens at even places are even, the others odd."""

    @property
    def grammars(self) -> "EvenAndOdd":
        """Return itself."""
        return self

    def state(self, grammar: str, prefix: Sequence[int] = ()) -> "EvenAndOdd":
        """Return itself."""
        return self

    def is_free(self, generated: int) -> bool:
        """Tell that no place is free."""
        return False

    def mask(self, generated: Sequence[int]) -> np.ndarray | None:
        """Allow the half of the vocabulary that may follow."""
        if any(token % 2 != place % 2 for place, token in enumerate(generated)):
            return None
        return np.arange(self.vocab_size) % 2 == len(generated) % 2


def measured(target: Any, costs: StepCosts | None = None, vocab_size: int = VOCAB) -> MeasuredTarget:
    """Make a measured target whose rows are free unless `costs` says otherwise, without early exit."""
    return MeasuredTarget(target, costs or StepCosts(FLAT), vocab_size, EarlyExitController())


def pipeline(
    target: Any,
    drafters: Sequence[Drafter] = (),
    model_free: Sequence[Drafter] = (),
    *,
    vocab_size: int = VOCAB,
    eos_ids: tuple[int, ...] = (),
    policy: Policy | None = None,
    max_sequences: int = 64,
    store: MemoryStore | None = None,
    is_shared: bool = False,
    steps_ahead: int = 0,
    tokenizer: Tokenizer | None = None,
    metrics: VerifierMetrics | None = None,
    on_lost: Callable[[Exception], None] | None = None,
    is_overlapped: bool = False,
    **settings: Any,
) -> LocalPipeline:
    """Build the pipeline in one process around a target and any drafters; all of them draft.

    Model drafters share their tokens if `is_shared`, and run `steps_ahead` steps ahead before each
    verdict. Steps are launched ahead if `is_overlapped`. `settings` are those that select a
    verifier's strategies.
    """
    store = store or MemoryStore()
    tokenizer = cast(Tokenizer, tokenizer or Characters(vocab_size, eos_ids))
    usual = {} if "plan" in settings else {"routing": "all"}
    chosen = Settings().changed(max_sequences=max_sequences, **usual, **settings)
    verifier = verifier_over(
        chosen,
        measured(target, vocab_size=vocab_size),
        "local",
        store,
        owner="owner",
        tokenizer=tokenizer,
        metrics=metrics,
        on_lost=on_lost,
    )
    names = tuple(d.name for d in model_free)
    pool = DrafterPool({d.name: "local" for d in drafters}, names, fuser="local", alone="local")
    verifier.follow(pool, policy or Policy())
    fetch = fetcher(store)
    token_fusion = TokenFusion(d.draft_kv for d in drafters if isinstance(d, ModelDrafter)) if is_shared else None
    node = EagerNode(drafters, fetch, "local", token_fusion, steps_ahead)
    made = OverlappedPipeline if is_overlapped else LocalPipeline
    return made(verifier, node, Fuser(model_free, vocab_size, fetch), store, tokenizer)


class OverlappedPipeline(LocalPipeline):
    """The pipeline whose rounds go as a deployment's: the next step is launched before the last one is committed."""

    def step(self) -> None:
        """Run one round."""
        run_round(self.verifier, self._draft, lambda jobs: None, lambda: float("inf"))

    def _draft(self, jobs: list[DraftJob]) -> tuple[list[DraftJob], list[SentTree]]:
        return [], draft_and_fuse(self.node, self.fuser, jobs)[1]


class ComputedStep:
    """A step that ran when it was launched, as on a device of its own; `collect` gives what `answer` gives."""

    runs_beside, took_s = True, 0.0

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.collect = answer


def computed_at_launch(target: ModelRunner) -> ModelRunner:
    """Return the runner with steps that run when they are launched."""
    launch = target.launch

    def launched(works: list[BatchEntry]) -> ComputedStep:
        try:
            rows = launch(works).collect()
        except Exception as error:  # it surfaces when the step is collected
            return failing_step(error)
        return ComputedStep(lambda: rows)

    target.launch = launched  # type: ignore[method-assign, assignment]
    return target


def failing_step(error: Exception) -> ComputedStep:
    """Return a step that fails with `error` when it is collected."""

    def fail() -> Any:
        raise error

    return ComputedStep(fail)


class EagerNode(DrafterNode):
    """A drafter node that always runs `steps_ahead` steps ahead."""

    def __init__(
        self,
        drafters: Iterable[Drafter],
        fetch: Fetch,
        mailbox: str,
        token_fusion: TokenFusion | None,
        steps_ahead: int,
    ) -> None:
        super().__init__(drafters, fetch, mailbox, token_fusion)
        self._steps_ahead = steps_ahead

    def go_on(self) -> list[JobBatch]:
        """Draft, then run ahead at once."""
        found = super().go_on()
        for _ in range(0 if self.is_drafting else self._steps_ahead):
            self.run_ahead()
        return found


def drafts_by(node: DrafterNode, jobs: Iterable[DraftJob]) -> list[Draft]:
    """Return a node's drafts for jobs."""
    node.begin(jobs)
    found: list[Draft] = []
    while node.is_drafting:
        found += [draft for batch in node.go_on() for draft in batch.drafts]
    return found


def submit(local: LocalPipeline, *records: Record) -> None:
    """Let the pipeline run these requests, beside those that it runs already."""
    for one in records:
        local.store.create(one, limit=10_000)
        local.store.assign(one.id, local.verifier.owner)
    local.verifier.adopt([one.id for one in records])


def finish(local: LocalPipeline, max_steps: int = 5000) -> None:
    """Step until every request has ended."""
    for _ in range(max_steps):
        if not local.store.active():
            return
        local.step()
    raise AssertionError(f"{local.store.active()} requests did not end in {max_steps} steps")


def texts(local: LocalPipeline, *records: Record) -> list[list[int]]:
    """Run these requests and return their tokens."""
    submit(local, *records)
    finish(local)
    return [list(local.store.snapshot(one.id).tokens) for one in records]


@torch.inference_mode()
def alone(model: PreTrainedModel, prompt_ids: Iterable[int], max_tokens: int) -> list[int]:
    """Return the tokens of transformers' own greedy `generate`.

    The model must not be one that `choose_forward` was given, which changes it.
    """
    ids = torch.tensor([list(prompt_ids)])
    out = cast(Any, model).generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens, pad_token_id=0
    )
    return cast(list[int], out[0, ids.shape[1] :].tolist())


class Scripted:
    """A drafter whose drafts are a function of the context."""

    def __init__(self, name: str, say: Callable[[Context], list[Draft]]) -> None:
        self.name = name
        self._say = say
        self.seen: list[str] = []

    def draft(self, contexts: Sequence[Context]) -> list[Draft]:
        """Draft by the function, and remember the requests."""
        self.seen += [context.request_id for context in contexts]
        return [draft for context in contexts for draft in self._say(context)]

    def update(self, context: Context) -> None:
        """Learn nothing."""

    def remove(self, request_id: str) -> None:
        """Remove nothing."""


class ScriptedGuesser:
    """A drafter's model whose guess is a function of all tokens before.

    It keeps the tokens that its cache would hold, and asserts that they are those of the sequence.
    """

    def __init__(self, say: Callable[[list[int]], Guess]) -> None:
        self._say = say
        self._caches: dict[int, list[int]] = {}  # by the sequence's id()
        self.calls: list[int] = []  # depth of each
        self.rows = 0  # tokens read
        self.is_full = False

    def try_reserve(self, work: BatchEntry, ahead: int) -> bool:
        """Reserve a page unless `is_full`."""
        if not self.is_full:
            work.sequence.pages = array("i", [0])
        return not self.is_full

    def guess(self, works: list[BatchEntry], depth: int, floor: float) -> list[list[Guess]]:
        """Guess a chain for each entry, and remember the depth."""
        self.calls.append(depth)
        return [self._chain(work, depth) for work in works]

    def cover(self, sequence: CachedSequence, tokens: int) -> None:
        """Count the first `tokens` tokens as cached."""
        sequence.cached = tokens

    def fork(self, sequence: CachedSequence, tokens: list[int]) -> CachedSequence | None:
        """Copy the cache before the last token, unless `is_full`."""
        if self.is_full:
            return None
        found = CachedSequence(sequence.id, tokens, cached=min(sequence.cached, len(tokens) - 1))
        self._caches[id(found)] = self._caches[id(sequence)][: found.cached]
        return found

    def release(self, sequence: CachedSequence) -> None:
        """Empty the sequence's cache."""
        self._caches.pop(id(sequence), None)
        sequence.cached, sequence.pages = 0, page_numbers()

    def invalidate(self, work: BatchEntry) -> None:
        """Empty the cache of the entry's sequence."""
        self.release(work.sequence)

    def _chain(self, work: BatchEntry, depth: int) -> list[Guess]:
        cache = self._caches.setdefault(id(work.sequence), [])
        assert cache[: work.start] == work.sequence.tokens[: work.start], "its cache is of other tokens"
        assert work.start <= len(cache)
        cache[work.start :] = work.tokens
        self.rows += len(work.tokens)
        found: list[Guess] = []
        for _ in range(depth if work.final else 1):
            if found:
                cache.append(found[-1].token)
                self.rows += 1
            found.append(self._say(cache))
        return found


def drafted(context: Context, name: str, tokens: Sequence[Any], **rest: Any) -> Draft:
    """Make a draft, unchecked, as a hostile drafter may send it; a confident chain unless `rest` differs."""
    values: dict[str, Any] = {
        "request_id": context.request_id,
        "base": len(context.tokens),
        "drafter": name,
        "tokens": tuple(tokens),
        "parents": tuple(range(len(tokens))),
        "confidences": (0.9,) * len(tokens),
    }
    return Draft(**{**values, **rest})


def guessing(name: str, *tokens: int, **rest: Any) -> Scripted:
    """Make a drafter with one draft for every context."""
    return Scripted(name, lambda context: [drafted(context, name, tokens, **rest)])


class Book:
    """The text that each request will have, for drafters that guess it right or wrong on purpose."""

    def __init__(self) -> None:
        self._texts: dict[str, list[int]] = {}

    def write(self, one: Record, text: Sequence[int]) -> None:
        """Keep the tokens that will be generated for a request."""
        self._texts[one.id] = [*one.prompt_ids, *text]

    def next(self, context: Context, count: int) -> list[int]:
        """Return the `count` tokens after the context; zeros where the book ends."""
        known = self._texts.get(context.request_id, [])[len(context.tokens) :]
        return (known + [0] * count)[:count]


NAN = float("nan")


def characters(book: Book, vocab_size: int = VOCAB) -> dict[str, Scripted]:
    """Make drafters of every behaviour, by name; only the sound ones keep to the length that was asked."""

    def right(c: Context) -> list[int]:
        return book.next(c, c.max_draft_tokens)

    def wrong(c: Context) -> list[int]:
        return [(token + 1) % vocab_size for token in right(c)]

    def noise(c: Context, count: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(len(c.tokens))
        return torch.rand(count, generator=generator)

    def random(c: Context) -> list[Draft]:
        count = c.max_draft_tokens
        tokens = (noise(c, count) * vocab_size).int().tolist()
        parents = [int(share * (i + 1)) for i, share in enumerate(noise(c, count).tolist())]
        return [drafted(c, "random", tokens, parents=tuple(parents), confidences=tuple(noise(c, count).tolist()))]

    def shy(c: Context) -> list[Draft]:
        """Draft right tokens below more confident wrong siblings: the accepted path is never the main branch."""
        tokens, parents, tip = [], [], 0
        for good, bad in zip(right(c), wrong(c), strict=True):
            tokens += [bad, good]
            parents += [tip, tip]
            tip = len(tokens)
        confidences = (0.52, 0.47) * (len(tokens) // 2)
        return [drafted(c, "shy", tokens, parents=tuple(parents), confidences=confidences)]

    ways: dict[str, Callable[[Context], list[Draft]]] = {
        "oracle": lambda c: [drafted(c, "oracle", right(c))],
        "wrong": lambda c: [drafted(c, "wrong", wrong(c))],
        "half": lambda c: [drafted(c, "half", [*right(c)[:2], *wrong(c)[2:]])],
        "shy": shy,
        "random": random,
        "nan": lambda c: [drafted(c, "nan", right(c), confidences=(0.9, NAN) * 40)],
        "infinite": lambda c: [drafted(c, "infinite", wrong(c), confidences=(float("inf"), -1.0, 1e300) * 20)],
        "foreign": lambda c: [drafted(c, "foreign", [right(c)[0], vocab_size, -1, 10**12])],
        "stale": lambda c: [drafted(c, "stale", right(c), base=len(c.tokens) - 1)],
        "early": lambda c: [drafted(c, "early", right(c), base=len(c.tokens) + 2)],
        "stranger": lambda c: [drafted(c, "stranger", right(c), request_id="unknown")],
        "impostor": lambda c: [drafted(c, "target", wrong(c))],
        "twice": lambda c: [drafted(c, "twice", wrong(c)), drafted(c, "twice", right(c))],
        "repeating": lambda c: [drafted(c, "repeating", right(c)[:1] * 8, parents=(0,) * 8)],
        "long": lambda c: [drafted(c, "long", [*right(c), *wrong(c) * 100])],
        "empty": lambda c: [drafted(c, "empty", [])],
        "silent": lambda c: [],
        "torn": lambda c: [drafted(c, "torn", right(c), parents=(0,), confidences=())],
        "cyclic": lambda c: [drafted(c, "cyclic", right(c), parents=tuple(range(1, 65)))],
    }
    return {name: Scripted(name, say) for name, say in ways.items()}
