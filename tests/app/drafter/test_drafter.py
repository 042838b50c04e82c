from app.drafter.drafter import DrafterNode
from app.drafter.model import ModelDrafter
from app.drafter.token_fusion import TokenFusion
from app.state import Guess
from tests.fakes import ScriptedGuesser, draft_job, drafts_by, guessing


def test_drafters_that_share_tokens_draft_in_their_own_names():
    models = [
        ModelDrafter(name, ScriptedGuesser(lambda read, at=at: Guess(read[-1] + at, at / 3, 0, 0.0)), 100)
        for at, name in ((1, "a"), (2, "b"))
    ]
    together = TokenFusion(model.draft_kv for model in models)
    one = DrafterNode([*models, guessing("c", 9)], lambda _: None, "n", together)
    by_name = {draft.drafter: draft for draft in drafts_by(one, [draft_job("r", [1], ("a", "b", "c"))])}
    assert by_name["b"].tokens == (3, 5, 7, 9)
    assert [by_name["a"].tokens[node - 1] for node in by_name["a"].borrowed] == [3, 5, 7]
    assert by_name["b"].borrowed == by_name["c"].borrowed == ()
    drafts_by(one, [draft_job("r", [1, 3], ("a", "b"), is_last=True)])
    assert not together.run_ahead(["r"])
