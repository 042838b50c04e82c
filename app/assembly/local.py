"""Put real models behind the pipeline's segments, as the settings say. Imports torch; worth calling once a process."""

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from app.assembly.devices import draft_device, leave_cores_to, on_another_device, pruning, target_runner
from app.assembly.fuser import build_fuser, model_free_names
from app.config import Settings
from app.drafter.drafter import DrafterNode
from app.drafter.model import ModelDrafter
from app.drafter.replicas import Fetch, fetcher
from app.drafter.token_fusion import TokenFusion
from app.engine.cpu.runner import ModelRunner
from app.engine.drafters.guesser import ModelGuesser
from app.engine.drafters.loader import card_of, load_guesser
from app.engine.drafters.token_similarity import embedding_agreement
from app.engine.gpu.guesser import DeviceGuesser, load_device_guesser
from app.engine.gpu.runner import DeviceRunner
from app.engine.kv.sizing import PAGE_TOKENS
from app.engine.profile.profile_cache import measured
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import drafter_folder, refusing, target_folder
from app.errors import ModelRefused
from app.estimates.step_costs import StepCosts
from app.pipeline import LocalPipeline
from app.policy import Policy
from app.stages.route.drafter_pool import DrafterPool
from app.stages.route.router import Router
from app.store.memory import MemoryStore
from app.store.protocol import Requests
from app.verifier.sequences import Running
from app.verifier.verifier import Verifier

log = logging.getLogger(__name__)
DRAFT_KV_BYTES = 256 * 2**20
AnyGuesser = ModelGuesser | DeviceGuesser


def build_verifier(settings: Settings, mailbox: str, store: Requests) -> Verifier:
    """A verifier with its model loaded, checked and measured. Raises ModelRefused."""
    runner, costs, tokenizer = _target(settings)
    tokenizer.grammars.prepare()  # later, sequences would wait for it
    running = _running(settings, runner, costs, tokenizer, mailbox)
    return Verifier(uuid.uuid4().hex, runner, running, store, settings)


def build_drafters(settings: Settings) -> list[ModelDrafter]:
    """The model drafters the settings name, loaded. Raises ModelRefused."""
    return _model_drafters(_guessers(settings))


def build_drafter_node(settings: Settings, models: list[ModelDrafter], fetch: Fetch, mailbox: str) -> DrafterNode:
    """A drafter node's segment: its models share every token, if the settings say so and there is more than one."""
    is_shared = settings.fusion == "token" and len(models) > 1
    token_fusion = TokenFusion(model.draft_kv for model in models) if is_shared else None
    return DrafterNode(models, fetch, mailbox, token_fusion)


@dataclass(frozen=True, slots=True)
class Models:
    """What of a pipeline in one process is worth loading once: models and measurements, and nothing of any request."""

    runner: ModelRunner | DeviceRunner
    costs: str  # a CostTable's JSON: each pipeline corrects its own
    guessers: Mapping[str, AnyGuesser]  # by drafter
    tokenizer: Tokenizer


def load_models(settings: Settings) -> Models:
    """Everything `local` needs, loaded, checked and measured. Raises ModelRefused."""
    guessers = _guessers(settings)
    runner, costs, tokenizer = _target(settings)
    return Models(runner, costs.dumps(), guessers, tokenizer)


def build_local(settings: Settings, models: Models | None = None) -> LocalPipeline:
    """The whole pipeline in this process; over `models`, several of them share what they have in memory.

    Raises ModelRefused.
    """
    models = models or load_models(settings)
    store = MemoryStore(ttl_s=settings.request_ttl_s, active_ttl_s=settings.active_ttl_s)
    running = _running(settings, models.runner, StepCosts.loads(models.costs), models.tokenizer, "local")
    running.pool = DrafterPool(
        models=dict.fromkeys(models.guessers, "local"),
        model_free=model_free_names(settings, models.tokenizer),
        core_share=1.0,
        fuser="local",
        readers=frozenset(name for name, guesser in models.guessers.items() if guesser.reads_state),
    )
    verifier = Verifier(uuid.uuid4().hex, models.runner, running, store, settings)
    verifier.policy = Policy(pruning=True)  # nobody steers here
    own = _model_drafters(models.guessers)
    node = build_drafter_node(settings, own, fetcher(store), "local")
    return LocalPipeline(verifier, node, build_fuser(settings, models.tokenizer, store), store, models.tokenizer)


def _running(
    settings: Settings, runner: ModelRunner | DeviceRunner, costs: StepCosts, tokenizer: Tokenizer, mailbox: str
) -> Running:
    running = Running(
        runner,
        costs,
        tokenizer.vocab_size,
        mailbox,
        _router(settings),
        settings.overlap,
        reader=tokenizer,
        lengths=settings.lengths,
    )
    running.pruning = pruning(runner, target_folder(settings), settings)
    return running


def _router(settings: Settings) -> Router:
    if settings.routing != "cosine":
        return Router(settings.routing, settings.drafters_per_sequence)
    return Router(settings.routing, settings.drafters_per_sequence, embedding_agreement(target_folder(settings)))


def _target(settings: Settings) -> tuple[ModelRunner | DeviceRunner, StepCosts, Tokenizer]:
    folder = target_folder(settings)
    with refusing(folder):
        tokenizer = Tokenizer(folder)
        runner = target_runner(folder, settings, tokenizer.context_tokens)
        costs = measured(runner, tokenizer.vocab_size, tokenizer.context_tokens, folder, settings)
    log.info("step costs, ms by rows: %s", costs.dumps())
    return runner, costs, tokenizer


def _guessers(settings: Settings) -> dict[str, AnyGuesser]:
    if settings.draft_device == "cuda" and settings.placement == "apart" and not on_another_device(settings):
        log.warning("two processes take turns on one GPU; PACELINE_PLACEMENT=together has one for both")
    torch.set_num_threads(settings.draft_threads)
    target = target_folder(settings)
    found = dict(_drafter(name, settings, target) for name in settings.drafters)
    leave_cores_to(*(guesser.model for guesser in found.values() if isinstance(guesser, ModelGuesser)))
    return found


def _model_drafters(guessers: Mapping[str, AnyGuesser]) -> list[ModelDrafter]:
    return [ModelDrafter(name, guesser, guesser.max_context, guesser.reads_state) for name, guesser in guessers.items()]


def _drafter(name: str, settings: Settings, target: Path) -> tuple[str, AnyGuesser]:
    folder = drafter_folder(name)
    if not (folder / "config.json").exists():
        raise ModelRefused(f"no drafter {name!r}: {folder} holds no config.json")
    memory = {"kv_bytes": DRAFT_KV_BYTES, "page_tokens": PAGE_TOKENS}
    device = draft_device(settings)
    with refusing(folder):
        _check_tokenizer(folder, target)
        if device.type == "cuda":
            dtype = getattr(torch, settings.gpu_dtype)
            return folder.name, load_device_guesser(folder, target, device, dtype, **memory)
        return folder.name, load_guesser(folder, target, **memory, is_int8=True, home=settings.home)  # it only guesses


def _check_tokenizer(folder: Path, target: Path) -> None:
    """A drafter's tokens must mean what the target's do: its card or its own tokenizer has to agree."""
    wanted = Tokenizer(target).sha256
    card = card_of(folder)
    found = card.get("tokenizer_sha256") if card else Tokenizer(folder).sha256
    if found != wanted:
        raise ModelRefused(f"the drafter in {folder} has another tokenizer than the target")
