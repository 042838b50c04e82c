"""Run batch entries inside vLLM, in this process: entries in, chosen rows out (`app.engine.target.Target`).

vLLM holds each sequence as a request of its own. A step says what each of them computes; all others rest. Where the
request and the sequence differ (a step failed, a commit was refused), the request is dropped and added anew, as after
a take-over: its prefix is found in vLLM's cache, or computed again. vLLM never preempts: Paceline counts its blocks.
"""

import time
from array import array
from collections import Counter
from functools import partial
from typing import Any, Final

from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core_client import InprocClient
from vllm.v1.executor.abstract import Executor

from app.engine.target import StepOnCollect
from app.engine.vllm.choosing import RowRule, WalkedRows
from app.engine.vllm.scheduler import Silent, Steered
from app.engine.vllm.worker import Worker
from app.errors import TargetLost
from app.state import BatchEntry, CachedSequence

MOST_DRAFTS = 16  # of a sequence in a step; vLLM makes room for so many


def config_of(args: EngineArgs, *, shares: bool) -> VllmConfig:
    """Complete vLLM's arguments. `shares`: sequences of a tenant share prefix blocks."""
    args.enable_prefix_caching, args.async_scheduling = shares, False
    args.scheduler_cls, args.worker_cls = _name(Steered), _name(Worker)
    args.speculative_config = {
        "method": "custom_class",
        "model": _name(Silent),
        "num_speculative_tokens": MOST_DRAFTS,
    }
    return args.create_engine_config(headless=args.node_rank > 0)


class VLLMTarget:
    """Implement `app.engine.target.Target`. Other threads must not use vLLM."""

    def __init__(self, config: VllmConfig, *, shares: bool) -> None:
        """`config`: of `config_of`."""
        self._client: Final = InprocClient(config, Executor.get_class(config), log_stats=False)
        self._core: Final = self._client.engine_core
        self._scheduler: Final[Steered] = self._core.scheduler
        self._blocks: Final = self._scheduler.kv_cache_manager
        self._shares: Final = shares
        self._page: Final[int] = self._scheduler.block_size
        self.longest_tokens: Final[int] = config.model_config.max_model_len
        self.capacity_tokens: Final[int] = (config.cache_config.num_gpu_blocks - 1) * self._page
        self._names: dict[int, tuple[CachedSequence, str]] = {}  # requests, by their sequences' id()
        self._added = 0
        self._reserved = 0  # blocks of the step that is being made
        self.counts: Final[Counter[str]] = Counter()

    @property
    def free_tokens(self) -> int:
        return int(self._blocks.block_pool.get_num_free_blocks()) * self._page

    def try_reserve(self, work: BatchEntry) -> bool:
        """Reserve blocks for an entry's rows: all or none. Its tree loses its side branches, which have no rows."""
        if work.scores is None:  # a path that is scored is of prompt tokens, and not of drafts
            work.tree = work.tree.chain().cut(MOST_DRAFTS)
        pages = work.sequence.pages
        more = max(0, -(-(work.start + len(work.tokens) + len(work.tree)) // self._page) - len(pages))
        if self._reserved + more > self._blocks.block_pool.get_num_free_blocks():
            return False
        self._reserved += more
        pages.extend([0] * more)  # a count: vLLM's own manager has the numbers
        return True

    def release(self, sequence: CachedSequence) -> None:
        self._abort(sequence)
        sequence.pages, sequence.cached = array("i"), 0

    def adopt(self, sequence: CachedSequence) -> int:
        self._reserved = 0  # a step begins
        if id(sequence) in self._names or not self._shares or sequence.cached:
            return 0
        request, _ = self._core.preprocess_add_request(self._request(sequence, "look", sequence.tenant))
        found = int(self._blocks.get_computed_blocks(request)[1])
        sequence.cached = found
        sequence.pages.extend([0] * (found // self._page - len(sequence.pages)))
        return found

    def cover(self, sequence: CachedSequence, tokens: int) -> None:
        request = self._find(sequence)
        sequence.cached = tokens if request is None else max(tokens, request.num_computed_tokens)

    def launch(self, works: list[BatchEntry]) -> StepOnCollect:
        return StepOnCollect(partial(self.forward, works))

    def forward(self, works: list[BatchEntry]) -> list[WalkedRows | None]:
        """Return the chosen rows of final entries, None for prompt chunks.

        Raises what vLLM raises, and TargetLost where one of its processes has ended.
        """
        self._reserved = 0
        names = [self._named(work) for work in works]
        drafts = {name: _drafts(work) for name, work in zip(names, works, strict=True)}
        scheduler = self._scheduler
        scheduler.drafts = drafts
        scheduler.ends = {
            name: work.start + len(work.tokens) + len(work.tree) for name, work in zip(names, works, strict=True)
        }
        scheduler.rules = {
            name: RowRule.of(work, drafts[name]) for name, work in zip(names, works, strict=True) if work.final
        }
        try:
            self._core.step()  # not the client's, which runs several steps in a pipeline at once
            if scheduler.ran.keys() != drafts.keys():
                raise MemoryError("vLLM ran other requests than were named")
        except BaseException:
            try:
                self._forget(names)
            except Exception as error:
                raise TargetLost(f"vLLM runs no more steps: {error}") from error
            raise
        self.counts["steps"] += 1
        return [self._rows(work, name) for work, name in zip(works, names, strict=True)]

    def accept(self, work: BatchEntry, path: list[int]) -> None:
        work.sequence.cached = work.start + len(work.tokens) + len(path)

    def drop(self, work: BatchEntry) -> None:
        self._abort(work.sequence)

    def invalidate(self, work: BatchEntry) -> None:
        self.release(work.sequence)

    def reset(self) -> None:
        """Forget all cached prefixes. No sequence may hold any."""
        self._core.reset_prefix_cache()

    def close(self) -> None:
        self._client.shutdown()

    def _rows(self, work: BatchEntry, name: str) -> WalkedRows | None:
        if not work.final:
            return None
        verdict = self._scheduler.verdicts[name]
        if work.scores is None:
            self._prune(work, self._scheduler.sent.get(name, ()))
        return WalkedRows(verdict)

    def _prune(self, work: BatchEntry, sent: "list[int] | tuple[()]") -> None:
        """Mark drafts without rows: a request that has joined in this step has none, or vLLM's padding."""
        verified = 0
        for own, other in zip(work.tree.tokens, sent, strict=False):
            if own != other:
                break
            verified += 1
        if verified < len(work.tree):
            work.pruned = {*range(verified + 1, len(work.tree) + 1)}

    def _forget(self, names: list[str]) -> None:
        """Forget requests whose step failed: vLLM has named their full blocks before they were computed."""
        for name in names:
            if name in self._scheduler.requests:
                for ids in self._blocks.get_block_ids(name):
                    self._blocks.evict_blocks({*ids})
        self._core.model_executor.collective_rpc("forget_step")
        self.counts["failed steps"] += 1

    def _named(self, work: BatchEntry) -> str:
        """Return the name of the entry's request, which has its tokens and has computed those before its start."""
        sequence = work.sequence
        request = self._find(sequence)
        if request is not None:
            is_there = (
                request.num_tokens == len(sequence.tokens)
                and request.num_computed_tokens in (0, work.start)
                and request.all_token_ids[-1] == sequence.tokens[-1]
            )
            if is_there:
                return str(request.request_id)
            self._abort(sequence)
        self._added += 1
        name = f"{sequence.id}.{self._added}"
        # What is found in the cache has no rows to score.
        salt = sequence.tenant if work.scores is None else f"{sequence.tenant} {name}"
        self._client.add_request(self._request(sequence, name, salt))
        self._names[id(sequence)] = sequence, name
        return name

    def _find(self, sequence: CachedSequence) -> Any:
        known = self._names.get(id(sequence))
        return None if known is None else self._scheduler.requests.get(known[1])

    def _request(self, sequence: CachedSequence, name: str, salt: str) -> EngineCoreRequest:
        params = SamplingParams(temperature=0.0, max_tokens=self.longest_tokens, ignore_eos=True, detokenize=False)
        return EngineCoreRequest(name, [*sequence.tokens], None, params, None, time.time(), None, salt, None)

    def _abort(self, sequence: CachedSequence) -> None:
        known = self._names.pop(id(sequence), None)
        if known is not None:
            self._client.abort_requests([known[1]])


def _drafts(work: BatchEntry) -> list[int]:
    return [] if work.scores is not None else work.tree.tokens


def _name(of: type) -> str:
    return f"{of.__module__}.{of.__qualname__}"
