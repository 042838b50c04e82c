"""Test the fusing of candidates; run by ../test_device.py, in a process of its own."""

import random

import pytest
import torch

from app.estimates.calibration import Calibration
from app.messages import Draft, DraftJob
from app.request import Sampling
from app.stages.fuse import AGREEMENT, MAX_SIBLING_MASS, fuse
from kernels.tree.fuse_candidates import fuse_candidates, fuse_candidates_reference
from tests.kernels.device.places import DEVICE

JOB = DraftJob(
    request_id="r",
    verifier="v",
    fuser="f",
    base=4,
    start=0,
    tokens=(1, 2, 3, 4),
    prompt_length=4,
    max_draft_tokens=64,
    drafters=(),
    sampling=Sampling(),
    due_s=0.0,
)


def draw_places(draw, most, num_places=5):
    """Draw places of up to `most` (token, drafter, confidence), with many repeated tokens and
    drafters."""
    tokens, drafters, confidences, sizes = [], [], [], []
    for _ in range(num_places):
        tokens.append([draw.randrange(20) for _ in range(most)])
        drafters.append([draw.randrange(5) for _ in range(most)])
        confidences.append([draw.choice([0.0, 0.25, 1.0, draw.random() ** 3, 0.01]) for _ in range(most)])
        sizes.append(draw.randint(0, most))
    integers = [torch.tensor(x, dtype=torch.int32) for x in (tokens, drafters, sizes)]
    return integers[0], integers[1], torch.tensor(confidences), integers[2]


@pytest.mark.parametrize("agreement", [0.0, AGREEMENT, 1.0])
@pytest.mark.parametrize(("most", "n"), [(1, 1), (7, 7), (33, 4), (64, 12)])
def test_fused_candidates_equal_the_references(most, n, agreement):
    arguments = draw_places(random.Random(most), most)
    rest = (n, agreement, MAX_SIBLING_MASS)
    found = fuse_candidates(*(x.to(DEVICE) for x in arguments), *rest)
    expected = fuse_candidates_reference(*arguments, *rest)
    assert torch.equal(found.counts.cpu(), expected.counts)
    torch.testing.assert_close(found.probabilities.cpu(), expected.probabilities, rtol=5e-4, atol=1e-6)
    same = found.tokens.cpu() == expected.tokens
    # Where the order differs, the two are too near each other for float32.
    everything = fuse_candidates_reference(*arguments, most, *rest[1:])
    for place, i in torch.nonzero(~same).tolist():
        named = everything.tokens[place, : everything.counts[place]].tolist()
        other = everything.probabilities[place, named.index(int(found.tokens[place, i]))]
        assert float(other) == pytest.approx(float(expected.probabilities[place, i]), rel=5e-4, abs=1e-6)
    assert same.float().mean() > 0.9


@pytest.mark.parametrize("seed", range(4))
def test_fused_candidates_are_those_of_the_fuse_stage(seed):
    draw = random.Random(seed)
    calibration = Calibration()
    drafts, pairs = [], []
    for drafter in range(4):
        tokens = [draw.randrange(12) for _ in range(draw.randint(1, 8))]
        confidences = [draw.random() * 0.9 + 0.01 for _ in tokens]
        name = f"d{drafter}"
        drafts.append(
            Draft(
                request_id="r", base=4, drafter=name, tokens=tokens, parents=[0] * len(tokens), confidences=confidences
            )
        )
        pairs += [(t, drafter, calibration.value(name, c)) for t, c in zip(tokens, confidences, strict=True)]
    tree = fuse(JOB, drafts, 100, calibration)
    tokens, drafters, confidences = zip(*pairs, strict=True)
    found = fuse_candidates(
        torch.tensor([tokens], dtype=torch.int32, device=DEVICE),
        torch.tensor([drafters], dtype=torch.int32, device=DEVICE),
        torch.tensor([confidences], device=DEVICE),
        torch.tensor([len(pairs)], dtype=torch.int32, device=DEVICE),
        min(len(pairs), 12),
        AGREEMENT,
        MAX_SIBLING_MASS,
    )
    count = int(found.counts)
    assert found.tokens[0, :count].tolist() == tree.tokens[:12]
    assert found.probabilities[0, :count].tolist() == pytest.approx(tree.survival[:12], rel=1e-4)
