"""Build the whole pipeline in one process."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.assembly.devices import AnyRunner
from app.assembly.drafter import AnyGuesser, build_drafter_node, drafters_over, load_guessers
from app.assembly.fuser import build_fuser, model_free_names
from app.assembly.verifier import agreement, load_target, measured_target, verifier_over
from app.config import Settings
from app.drafter.replicas import fetcher
from app.engine.step_costs import StepCosts
from app.engine.text.tokenizer import Tokenizer
from app.pipeline import LocalPipeline
from app.policy import Policy
from app.speculation.drafter_pool import DrafterPool
from app.store.memory import MemoryStore

MAILBOX = "local"


@dataclass(frozen=True, slots=True)
class Models:
    runner: AnyRunner
    costs: str  # step costs as JSON: each pipeline corrects its own
    guessers: Mapping[str, AnyGuesser]  # by drafter
    tokenizer: Tokenizer


def load_models(settings: Settings) -> Models:
    """Load, check and measure everything that `build_local` needs. Raises ModelRefused."""
    guessers = load_guessers(settings)
    runner, costs, tokenizer = load_target(settings)
    return Models(runner, costs.dumps(), guessers, tokenizer)


def build_local(settings: Settings, models: Models | None = None) -> LocalPipeline:
    """Raises ModelRefused."""
    models = models or load_models(settings)
    store = MemoryStore(ttl_s=settings.request_ttl_s)
    measured = measured_target(settings, models.runner, StepCosts.loads(models.costs), models.tokenizer)
    verifier = verifier_over(
        settings, measured, MAILBOX, store, tokenizer=models.tokenizer, agreement=agreement(settings)
    )
    pool = DrafterPool(
        models=dict.fromkeys(models.guessers, MAILBOX),
        model_free=model_free_names(settings, models.tokenizer),
        core_share=1.0,
        fuser=MAILBOX,
        alone=MAILBOX,
        readers=frozenset(name for name, guesser in models.guessers.items() if guesser.reads_state),
    )
    verifier.follow(pool, Policy(pruning=True))  # no controller runs here
    node = build_drafter_node(settings, drafters_over(models.guessers), fetcher(store), MAILBOX)
    fuser = build_fuser(settings, models.tokenizer, store, verifier.sequences.tokens)
    return LocalPipeline(verifier, node, fuser, store, models.tokenizer)
