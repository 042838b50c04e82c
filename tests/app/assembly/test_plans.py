"""Test what each plan selects, that settings replace its parts, and that no plan changes a text."""

from typing import get_args

import pytest
from pydantic import ValidationError

from app.assembly.fuser import build_fuser, model_free_names
from app.assembly.verifier import lengths, overlap, routing, selection
from app.config import Settings
from app.engine.step_costs import StepCosts
from app.errors import InvalidSettings
from app.local.process_specs import services, settings_environment
from app.messages import DraftJob
from app.plans import PLANS, PlanName
from app.request import Sampling
from app.scheduler.tree_budget import BatchRows
from app.speculation.draft_costs import DraftCosts
from app.state import CachedSequence, Sequence, Tree
from app.store.memory import MemoryStore
from tests import fakes
from tests.app.assembly.test_fuser import TOKENIZER
from tests.fakes import Book, characters, record

PAPERS = [name for name in PLANS if name not in ("pace", "off")]
PLAIN, RUNNER = fakes.tiny(), fakes.served()
PROMPTS = [[(i * 7 + salt) % 50 for i in range(10 + 9 * salt)] for salt in range(3)]


def test_every_plan_can_be_built():
    assert tuple(PLANS) == get_args(PlanName)
    for name in PLANS:
        settings = Settings.from_env({"PACELINE_PLAN": name})
        assert settings.plan is PLANS[name] and settings.plan.changes() == {} and str(settings.plan) == name
        assert settings.drafters == PLANS[name].drafters
        chosen = selection(settings, DraftCosts(), RUNNER)
        assert all((lengths(settings), overlap(settings), routing(settings), chosen))


def test_a_file_changes_parts_of_a_plan(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('base = "cosine"\nfusion = "tree"\ndrafters = ["a"]\n[objective]\nmax_s = 0.5')
    settings = Settings.from_env({"PACELINE_PLAN": str(file)})
    assert settings.drafters == ("a",) and settings.plan.objective.max_s == 0.5
    assert settings.plan.changed(fusion="token", drafters=PLANS["cosine"].drafters, objective={}) == PLANS["cosine"]
    handed_on = Settings.from_env(settings_environment(settings))
    assert handed_on == settings and handed_on.plan == settings.plan, "as a table, without the file"
    named = Settings.from_env({"PACELINE_PLAN": str(file), "PACELINE_DRAFTERS": "b,c"})
    assert named.drafters == ("b", "c") == named.changed(plan="pace").drafters
    assert settings.changed(plan="pace").drafters == PLANS["pace"].drafters
    with pytest.raises(ValidationError):
        settings.changed(fusion="none")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('routing = "best"', r"mine.toml: routing: Input should be 'pace'"),
        ('rooting = "all"', r"mine.toml: rooting: a plan has no such part; routing, perhaps"),
        ('base = "cosin"', r"mine.toml: base: there is no plan 'cosin'; cosine, perhaps"),
        ("drafters_per_sequence = 0", r"mine.toml: drafters_per_sequence: Input should be greater than"),
        ('overlap = "joint"', r"mine.toml: overlap: joint needs lengths"),
        ('partition = "auto"', r"mine.toml: partition: auto needs overlap: joint"),
        ("[objective]\nmax = 1", r"mine.toml: objective: Extra inputs"),
        ("fusion: tree", r"the plan .*mine.toml is not valid TOML: .*line 1"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path, text, sentence):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(InvalidSettings, match=f"^PACELINE_PLAN: .*{sentence}.*$") as refused:
        Settings.from_env({"PACELINE_PLAN": str(file)})
    assert "DRAFTERS" not in str(refused.value), "they follow the plan, and are not at fault"


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ("eagle", "there is no plan 'eagle'; it is one of pace, cosine"),
        ("fasr", "there is no plan 'fasr'; faser, perhaps"),
        ("/nowhere.toml", "the plan /nowhere.toml cannot be read: No such file"),
        ("{base = }", "is not a TOML table"),
    ],
)
def test_a_wrong_plan_is_named(plan, sentence):
    with pytest.raises(InvalidSettings, match=f"^PACELINE_PLAN: .*{sentence}"):
        Settings.from_env({"PACELINE_PLAN": plan})


@pytest.mark.parametrize("name", PAPERS)
def test_papers_plans_look_nothing_up(name):
    settings = Settings(plan=name)
    assert model_free_names(settings, TOKENIZER) == () and not settings.plan.states
    segment = build_fuser(settings, TOKENIZER, MemoryStore())
    job = DraftJob(
        request_id="r", verifier="v", fuser="f", base=4, start=0, tokens=(2, 3, 2, 3), prompt_length=2,
        max_draft_tokens=3, drafters=("lookup",), sampling=Sampling(), due_s=9.0,
    )  # fmt: skip
    segment.expect([job])
    ((_, tree),) = segment.collect(0.0)
    assert tree.tokens == ()


@pytest.mark.parametrize(
    ("changes", "is_whole"),
    [
        ({"plan": "vanilla"}, True),
        ({"plan": "specinfer"}, True),
        ({"plan": "faser"}, True),
        ({"plan": "cosine"}, False),
        ({"plan": "pace"}, False),
        ({"plan": "pace", "lengths": "fixed:3"}, True),
        ({"plan": "cosine", "lengths": "tree:4"}, False),
    ],
)
def test_rules_that_weigh_no_token_get_all_that_they_ask_for(changes, is_whole):
    """What drafters leave out as too unlikely, and what they share, is cut by survival."""
    assert Settings().changed(**changes).plan.drafts_whole == is_whole


def test_trees_are_verified_as_such_or_as_chains():
    plans = ("specinfer", "vanilla", "pace", "cosine", "faser")
    assert [lengths(Settings(plan=plan)).is_tree for plan in plans] == [True, False, True, True, False]


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"plan": "vanilla"}, [6, 6]),
        ({"plan": "faser"}, [6, 6]),
        ({"plan": "cosine", "batching": "pace"}, [6, 6]),
        ({"plan": "cosine"}, [0, None]),
        ({"plan": "pace"}, [0, 0]),
    ],
)
def test_all_of_a_tree_is_verified_where_a_plan_does_not_weigh_it(changes, kept):
    trees = [Tree([1] * 6, [*range(6)], [0.01] * 6, [("a",)] * 6)] * 2
    sequences = [Sequence(record([1], request_id=name), CachedSequence(name, [1, 1], cached=1)) for name in "ab"]
    rows = BatchRows(2, 64, 0, StepCosts({1: 1.0, 64: 64.0}))
    chosen = selection(Settings().changed(**changes), DraftCosts(), RUNNER)
    assert chosen.select(sequences, trees, rows) == kept
    assert chosen.most_nodes(64) >= (6 if all(kept) else 4)


@pytest.mark.parametrize("name", PLANS)
def test_no_plan_changes_a_text_and_each_asks_its_drafters(name):
    book = Book()
    drafters = [characters(book)[one] for one in ("oracle", "half")]
    local = fakes.pipeline(RUNNER, drafters, plan=name)
    records = [record(prompt, 24, request_id=f"r{i}") for i, prompt in enumerate(PROMPTS)]
    texts = [fakes.alone(PLAIN, prompt, 24) for prompt in PROMPTS]
    for one, text in zip(records, texts, strict=True):
        book.write(one, text)
    assert fakes.texts(local, *records) == texts
    asked = {drafter for one in records for drafter in local.store.snapshot(one.id).stats.by_drafter}
    wanted = {"off": set(), "vanilla": {"oracle"}, "faser": {"oracle"}, "specinfer": {"oracle", "half"}}
    assert asked == wanted.get(name, asked)
    assert (sum(local.store.snapshot(one.id).stats.accepted for one in records) > 0) == (name != "off")


def test_a_plan_that_asks_nothing_starts_no_drafter():
    assert [name for name in PLANS if not PLANS[name].drafts] == ["off"]
    roles = {name: [service.role for service in services(Settings(plan=name), 8000)] for name in ("pace", "off")}
    assert "draft" in roles["pace"] and "draft" not in roles["off"]
