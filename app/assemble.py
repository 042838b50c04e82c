"""Put real models behind the pipeline's segments, as the settings say. Imports torch; worth calling once a process."""

import json
import logging
import uuid
from pathlib import Path

import torch

from app.assemble_resident import fusing
from app.assemble_target import leave_cores_to, target_runner
from app.config import ROOT, Settings
from app.crew import Crew
from app.drafting import Drafting
from app.engine.agreement import embedding_agreement
from app.engine.guesser import ModelGuesser, load_guesser
from app.engine.measure import check_exactness, measure_costs
from app.engine.source import resolve
from app.engine.tokenizer import Tokenizer
from app.errors import ModelRefused
from app.following import Fetch, fetcher
from app.fusing import Fusing
from app.pipeline import Local, Verifying
from app.routing import Router
from app.running import Running
from app.stages.draft.cooperative import Cooperative
from app.stages.draft.model import ModelDrafter
from app.stages.draft.registry import RESIDENT
from app.store.memory import MemoryStore
from app.store.protocol import Requests

log = logging.getLogger(__name__)
DRAFT_KV_BYTES = 256 * 2**20


def target_folder(settings: Settings) -> Path:
    """Where the target's files are; fetched and converted on first use. Raises ModelRefused."""
    return resolve(settings.model, settings.home, log.info)


def verifying(settings: Settings, owner: str, mailbox: str, store: Requests) -> Verifying:
    """A verifier with its model loaded, checked and measured. Raises ModelRefused."""
    folder = target_folder(settings)
    tokenizer = Tokenizer(folder)
    runner = target_runner(folder, settings, tokenizer.context_tokens)
    check_exactness(runner, tokenizer.vocab_size)
    costs = measure_costs(runner, tokenizer.vocab_size)
    log.info("step costs, ms by rows: %s", costs.dumps())
    running = Running(runner, costs, tokenizer.vocab_size, mailbox, _router(settings, folder), settings.run_ahead)
    return Verifying(owner, runner, running, store, settings)


def drafters(settings: Settings) -> list[ModelDrafter]:
    """The model drafters the settings name, loaded. Raises ModelRefused."""
    torch.set_num_threads(settings.draft_threads)
    target = target_folder(settings)
    found = [_drafter(name, settings, target) for name in settings.drafters]
    leave_cores_to(*(guesser.model for _, guesser in found))
    return [ModelDrafter(name, guesser, guesser.max_context, guesser.reads_state) for name, guesser in found]


def drafting(settings: Settings, models: list[ModelDrafter], fetch: Fetch, fuse: Fusing, mailbox: str) -> Drafting:
    """A drafter node's segment: its models share every token, if the settings say so and there is more than one."""
    is_shared = settings.fusion == "token" and len(models) > 1
    together = Cooperative(model.reader for model in models) if is_shared else None
    return Drafting(models, fetch, fuse, mailbox, together)


def local(settings: Settings) -> Local:
    """The whole pipeline in this process. Raises ModelRefused."""
    store = MemoryStore(ttl_s=settings.request_ttl_s, active_ttl_s=settings.active_ttl_s)
    models = drafters(settings)
    verifier = verifying(settings, uuid.uuid4().hex, "local", store)
    readers = frozenset(d.name for d in models if d.reads_state)
    verifier.running.crew = Crew(
        {d.name: "local" for d in models}, tuple(RESIDENT), share=1.0, fuser="local", readers=readers
    )
    tokenizer = Tokenizer(target_folder(settings))
    segment = drafting(settings, models, fetcher(store), fusing(tokenizer, store), "local")
    return Local(verifier, segment, store, tokenizer)


def _router(settings: Settings, target: Path) -> Router:
    if settings.routing != "cosine":
        return Router(settings.routing, settings.drafters_per_sequence)
    return Router(settings.routing, settings.drafters_per_sequence, embedding_agreement(target))


def drafter_folder(name: str) -> Path:
    """The folder a drafter's name stands for: one of those shipped, or a path."""
    shipped = ROOT / "drafters" / name
    return shipped if shipped.is_dir() else Path(name)


def _drafter(name: str, settings: Settings, target: Path) -> tuple[str, ModelGuesser]:
    folder = drafter_folder(name)
    if not (folder / "config.json").exists():
        raise ModelRefused(f"no drafter {name!r}: {folder} holds no config.json")
    _check_tokenizer(folder, target)
    memory = {"kv_bytes": DRAFT_KV_BYTES, "page_tokens": settings.page_tokens}
    return folder.name, load_guesser(folder, target, **memory, is_int8=settings.draft_weights == "int8")


def _check_tokenizer(folder: Path, target: Path) -> None:
    """A drafter's tokens must mean what the target's do: its card or its own tokenizer has to agree."""
    wanted = Tokenizer(target).sha256
    card = folder / "drafter.json"
    found = json.loads(card.read_text()).get("tokenizer_sha256") if card.exists() else Tokenizer(folder).sha256
    if found != wanted:
        raise ModelRefused(f"the drafter in {folder} has another tokenizer than the target")
