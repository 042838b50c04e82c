"""Check the default target with its shipped drafter, batched, against its text without a pipeline."""

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from app.assembly.devices import pruning
from app.assembly.drafter import load_guessers
from app.assembly.local import Models, build_local
from app.assembly.verifier import Loaded, load_target
from app.config import Settings
from app.engine.step_costs import StepCosts
from app.engine.target import StepOnCollect
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import target_folder
from app.messages import Record
from app.pipeline import LocalPipeline
from app.policy import Policy
from app.request import GenerateRequest, SpeculationBounds
from tests import fakes
from tests.models import model_dir

pytestmark = [pytest.mark.model, pytest.mark.slow]
TOKENS = 24
NEAR_TIE = 1e-4  # a smaller gap between the two best logits may flip by rounding
RAW = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time there was a small dragon who",
    "1, 2, 3, 4, 5, 6, 7,",
    "Water boils at 100 degrees Celsius because",
    "import numpy as np\n\ndef softmax(x):\n",
    "In the beginning God created the heaven and the earth. And the earth",
    "Q: What is 12 times 12?\nA:",
    "{\"name\": \"Alice\", \"age\": 30, \"friends\": [",
    "La révolution française commence en",
    "a b c d a b c d a b c d",
]  # fmt: skip
CHAT = [
    "What is the capital of Italy?",
    "Write a haiku about the sea.",
    "Explain photosynthesis to a child in three sentences.",
    "Write a Python function that reverses a string.",
    "List the planets of the solar system.",
    "Tom has 3 apples and buys 5 more. How many does he have? Think step by step.",
    "Give me a recipe for pancakes.",
    "Translate to French: Good morning, my friend.",
    "Why is the sky blue?",
    "Repeat the word 'echo' ten times.",
    "Fix this code: for i in range(10) print(i)",
]


@pytest.fixture(scope="module")
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def loaded(settings: Settings) -> Models:
    """Load without measuring: all steps cost the same."""
    given = Loaded(Tokenizer(target_folder(settings)), costs=StepCosts(fakes.FLAT))
    runner, costs, tokenizer = load_target(settings, given)
    return Models(runner, costs.dumps(), load_guessers(settings), tokenizer)


@pytest.fixture(scope="module")
def pipeline(threads: None) -> LocalPipeline:
    """Return a pipeline that verifies all drafts at any cost: exactness is tested, not speed."""
    torch.set_num_threads(2)
    settings = Settings(model=str(model_dir()), kv_bytes=800 * 2**20)
    return build_local(settings, loaded(settings))


@pytest.fixture(scope="module")
def rounding(threads: None) -> LocalPipeline:
    """Return the same pipeline with int8 activations."""
    torch.set_num_threads(2)
    settings = Settings(model=str(model_dir()), kv_bytes=800 * 2**20, activations="int8")
    return build_local(settings, loaded(settings))


@pytest.fixture(scope="module")
def plain(threads: None) -> PreTrainedModel:
    """Return transformers' own model."""
    folder = model_dir()
    file = next((path.name for path in folder.glob("*.gguf")), None)  # read and dequantised by transformers itself
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32, local_files_only=True)
    return model.eval()


def requests(*samplings: dict[str, Any]) -> list[GenerateRequest]:
    """Return a raw and a chat prompt in turn, each pair with the next of the samplings."""
    found = []
    for raw, chat, sampling in zip(RAW, CHAT, cycle(samplings or ({},)), strict=False):
        found.append(GenerateRequest(prompt=raw, raw=True, max_tokens=TOKENS, **sampling))
        found.append(GenerateRequest(prompt=chat, max_tokens=TOKENS, **sampling))
    return found


def plainly(asked: list[GenerateRequest]) -> list[GenerateRequest]:
    """Return the same requests without speculation."""
    return [one.model_copy(update={"speculation": SpeculationBounds(enabled=False)}) for one in asked]


def submit(pipeline: LocalPipeline, asked: list[GenerateRequest]) -> list[Record]:
    """Submit all at once, and run the pipeline until they have ended."""
    records = [pipeline.submit(one, Settings()) for one in asked]
    fakes.finish(pipeline)
    return records


def tokens(pipeline: LocalPipeline, records: list[Record]) -> list[list[int]]:
    return [list(pipeline.store.snapshot(one.id).tokens) for one in records]


@torch.inference_mode()
def together(model: PreTrainedModel, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    """Return the tokens of `generate` in one padded batch, which takes a tenth of the time."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=TOKENS, pad_token_id=0)
    (eos,) = {model.generation_config.eos_token_id}
    texts = out[:, longest:].tolist()
    return [text[: text.index(eos) + 1] if eos in text else text for text in texts]


@torch.inference_mode()
def gap(model: PreTrainedModel, ids: list[int]) -> float:
    """Return the distance of the two best logits after these tokens."""
    best = model(torch.tensor([ids])).logits[0, -1].topk(2).values
    return float(best[0] - best[1])


def test_greedy_text_is_that_of_transformers_generate(pipeline, plain, record_property):
    records = submit(pipeline, requests())
    assert len(records) >= 20
    flips = []
    batched = together(plain, [one.prompt_ids for one in records])
    for i, (one, text) in enumerate(zip(records, tokens(pipeline, records), strict=True)):
        # Padding has a rounding of its own; so the reference of a text that differs, and of a few
        # others, is `generate` on its prompt alone.
        expected = batched[i] if text == batched[i] and i >= 4 else fakes.alone(plain, one.prompt_ids, TOKENS)
        if text != expected:
            at = next(i for i, pair in enumerate(zip(text, expected, strict=False)) if pair[0] != pair[1])
            flips.append((one.prompt_ids[-8:], at, gap(plain, [*one.prompt_ids, *expected[:at]])))
    record_property("near_tie_flips", len(flips))
    print(f"\nnear-tie flips: {len(flips)} in {len(records)} texts")
    assert all(width < NEAR_TIE for *_, width in flips), flips

    stats = [pipeline.store.snapshot(one.id).stats for one in records]
    length = sum(map(len, tokens(pipeline, records))) / sum(one.rounds for one in stats)
    print(f"tokens a round: {length:.2f}")
    assert length > 1.5
    shipped = Path(Settings().drafters[0]).name
    assert sum(one.by_drafter[shipped].accepted for one in stats if shipped in one.by_drafter) > len(records)


def test_sampled_text_of_a_seed_is_the_same_with_and_without_speculation(pipeline):
    mixed = requests({"temperature": 0.8, "top_p": 0.95}, {"temperature": 1.0, "top_k": 40, "min_p": 0.05})
    asked = [one.model_copy(update={"seed": i, "max_tokens": 24}) for i, one in enumerate(mixed[:8])]
    pool = pipeline.verifier.speculation.pool
    pipeline.verifier.follow(pool, Policy(prefill_chunk_tokens=16))
    on = submit(pipeline, asked)
    pipeline.verifier.follow(pool, Policy())
    off = submit(pipeline, plainly(asked))
    assert tokens(pipeline, on) == tokens(pipeline, off)
    assert sum(pipeline.store.snapshot(one.id).stats.accepted for one in on) > 0
    assert sum(pipeline.store.snapshot(one.id).stats.drafted for one in off) == 0
    (alone,) = submit(pipeline, plainly(asked[3:4]))
    assert tokens(pipeline, [alone]) == tokens(pipeline, off[3:4])


def test_text_of_int8_activations_is_the_same_with_and_without_speculation(rounding, pipeline):
    mixed = requests({}, {"temperature": 0.8, "top_p": 0.95})
    asked = [one.model_copy(update={"seed": i, "max_tokens": 16}) for i, one in enumerate(mixed[:10])]
    on, off = submit(rounding, asked), submit(rounding, plainly(asked))
    assert tokens(rounding, on) == tokens(rounding, off)
    assert sum(rounding.store.snapshot(one.id).stats.accepted for one in on) > 0
    (alone,) = submit(rounding, plainly(asked[5:6]))
    assert tokens(rounding, [alone]) == tokens(rounding, off[5:6])
    exact = tokens(pipeline, submit(pipeline, plainly(asked)))
    pairs = zip(tokens(rounding, off), exact, strict=True)
    alike = [a == b for text, other in pairs for a, b in zip(text, other, strict=False)]
    print(f"\ntokens that are float32's, place by place: {sum(alike)} of {len(alike)}")
    assert 0.2 * len(alike) < sum(alike), "the same model, rounded"


def test_penalised_text_is_the_same_with_and_without_speculation(pipeline):
    shape = {
        "frequency_penalty": 0.7,
        "presence_penalty": 0.3,
        "repetition_penalty": 1.2,
        "logit_bias": {284: 1.5, 28: -2.0},
    }
    asked = [one.model_copy(update={"max_tokens": 20}) for one in requests(shape)[:4]]
    assert tokens(pipeline, submit(pipeline, asked)) == tokens(pipeline, submit(pipeline, plainly(asked)))


def test_rows_that_leave_early_change_no_text_and_no_bit_of_others(pipeline, monkeypatch):
    """By the shipped rank test; tests/app/engine/early_exit/test_rows.py has any rule, on tiny models."""
    runner = pipeline.verifier.target
    settings = Settings().changed(pruning="on")
    monkeypatch.setattr(runner, "predictor", None)
    pruning(runner, target_folder(settings), settings)
    predictor = runner.predictor
    asked = [one.model_copy(update={"max_tokens": 16}) for one in requests()[:4]]
    plain = tokens(pipeline, submit(pipeline, asked))
    forward, dropped = runner.forward, []

    def both(works):
        for work in works:
            work.may_exit = False
        whole = forward(works)
        for work in works:
            work.may_exit = work.final
        found = forward(works)
        for work, a, b in zip(works, whole, found, strict=True):
            dropped.append(len(work.pruned))
            kept = [] if b is None else [node for node in range(1 + len(work.tree)) if node not in work.pruned]
            assert all(torch.equal(a.rows[node], b.rows[b.row(node)]) for node in kept)
        return found

    monkeypatch.setattr(runner, "launch", lambda works: StepOnCollect(lambda: both(works)))
    monkeypatch.setattr(runner, "predictor", predictor)
    assert tokens(pipeline, submit(pipeline, asked)) == plain
    assert sum(dropped) > 10


def test_all_pages_are_free_at_the_end(pipeline):
    pool = pipeline.verifier.target.pool
    assert pool.num_free == pool.num_pages
