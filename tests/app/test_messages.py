"""The JSON of hot messages is what it was before they were structs, and is checked where it is read."""

import json

import pytest

from app.errors import MessageError
from app.messages import (
    Draft,
    DrafterCounts,
    DraftJob,
    DraftReport,
    Event,
    FinishReason,
    HotMessage,
    Settle,
    SharedPath,
    Stats,
    ToDrafter,
    ToFuser,
    TokenGuess,
    ToVerifier,
    TreeMessage,
)
from app.request import Sampling, TokenLogprobs
from app.store.event_stream import stored_texts

SAMPLING = (
    '{"temperature":0.5,"top_p":1.0,"top_k":0,"min_p":0.0,"seed":7,"choice":0,"frequency_penalty":0.0,'
    '"presence_penalty":0.0,"repetition_penalty":1.0,"logit_bias":{"5":-1.5},"allowed_token_ids":null}'
)
# Of each kind an item, and its text as the last version with validated classes wrote it.
WRITTEN: list[tuple[HotMessage, str]] = [
    (
        ToDrafter(
            sent_s=12.5,
            jobs=(
                DraftJob(
                    request_id="r",
                    verifier="verify:v",
                    to="draft:d",
                    fuser="fuse",
                    base=3,
                    start=1,
                    tokens=(4, 5),
                    prompt_length=2,
                    max_draft_tokens=4,
                    drafters=("a", "lookup"),
                    sampling=Sampling(temperature=0.5, seed=7, logit_bias={5: -1.5}),
                    due_s=1e9,
                ),
            ),
            paths=(SharedPath(request_id="r", base=3, tokens=(1,), survival=0.25),),
        ),
        '{"sent_s":12.5,"jobs":[{"request_id":"r","tenant":"public","verifier":"verify:v","to":"draft:d","fuser":"fuse",'
        '"base":3,"start":1,"tokens":[4,5],"prompt_length":2,"max_draft_tokens":4,"drafters":["a","lookup"],'
        '"sampling":' + SAMPLING + ',"due_s":1000000000.0,"state":null,"step_s":0.0,"least_survival":0.06,'
        '"max_nodes":0,"has_leaves":true,"pace":0.0,"is_reading":false,"is_last":false,"sharing":[]}],"paths":[{"request_id":"r","base":3,"tokens":[1],"survival":0.25}]}',
    ),
    (
        ToFuser(
            drafts=(
                Draft(request_id="r", base=3, drafter="é", tokens=(1, 2), parents=(0, 1), confidences=(0.1, 1e-9)),
            ),
            guesses=(
                TokenGuess(
                    request_id="r",
                    base=3,
                    step=0,
                    drafter="a",
                    token=1,
                    confidence=0.9,
                    second=2,
                    second_confidence=0.05,
                ),
            ),
        ),
        '{"sent_s":0.0,"jobs":[],"drafts":[{"request_id":"r","base":3,"drafter":"é","tokens":[1,2],"parents":[0,1],'
        '"confidences":[0.1,1e-9],"borrowed":[],"report":null}],"guesses":[{"request_id":"r","base":3,"step":0,"drafter":"a",'
        '"token":1,"confidence":0.9,"second":2,"second_confidence":0.05}]}',
    ),
    (
        ToVerifier(
            adopt=("r",),
            trees=(
                TreeMessage(
                    request_id="r",
                    base=3,
                    tokens=(1,),
                    parents=(0,),
                    survival=(0.5,),
                    proposers=(("a", "b"),),
                    confidence={"a": 0.5},
                    reports={"a": DraftReport(guess_s=0.5, guessed=4, batch=1, seen=3)},
                ),
            ),
        ),
        '{"adopt":["r"],"trees":[{"request_id":"r","base":3,"tokens":[1],"parents":[0],"survival":[0.5],'
        '"proposers":[["a","b"]],"confidence":{"a":0.5},"reports":{"a":{"guess_s":0.5,"guessed":4,"batch":1,"read_s":0.0,"read_tokens":0,"seen":3}}}]}',
    ),
    (Settle(request_id="r"), '{"sent_s":0.0,"request_id":"r"}'),
]
EVENT = Event(
    offset=0,
    tokens=(4, 5),
    proposers=("a", "target"),
    logprobs=(TokenLogprobs(logprob=-0.5), TokenLogprobs(logprob=-1.5, top=((3, -0.25),))),
    finish_reason=FinishReason.STOP,
    stats=Stats(rounds=1, drafted=2, accepted=1, by_drafter={"a": DrafterCounts(drafted=2)}, last_token_s=1.7e9),
)
EVENT_TEXT = (
    '{"offset":0,"tokens":[4,5],"proposers":["a","target"],"logprobs":[{"logprob":-0.5},'
    '{"logprob":-1.5,"top":[[3,-0.25]]}],"finish_reason":"stop","stats":{"rounds":1,"drafted":2,"accepted":1,'
    '"by_drafter":{"a":{"drafted":2}},"last_token_s":1700000000.0}}'
)


@pytest.mark.parametrize(("message", "text"), WRITTEN)
def test_mail_is_written_as_before(message: HotMessage, text: str) -> None:
    assert message.json() == text
    assert type(message).read(text) == message


OTHER_VERSIONS = [
    (
        '{"sent_s":0.0,"adopt":[],"trees":[{"request_id":"r","base":3,"tokens":[1],"parents":[0],"survival":[0.5],'
        '"proposers":[["a"]],"models_s":0.25,"guessed":4,"skipped":[],"confidence":{"a":0.5}}]}',
        ToVerifier(
            trees=(
                TreeMessage(
                    request_id="r",
                    base=3,
                    tokens=(1,),
                    parents=(0,),
                    survival=(0.5,),
                    proposers=(("a",),),
                    confidence={"a": 0.5},
                ),
            )
        ),
    ),
    (WRITTEN[0][1].replace('"step_s":0.0', '"run_ahead":false,"skip_models_above":0.5'), WRITTEN[0][0]),
    (WRITTEN[0][1].replace('"max_nodes":0,"has_leaves":true,"pace":0.0,"is_reading":false,', ""), WRITTEN[0][0]),
    (WRITTEN[1][1].replace(',"report":null', ""), WRITTEN[1][0]),
    (WRITTEN[2][1].replace('"seen":3', '"seen":3,"later":[1]'), WRITTEN[2][0]),
]


@pytest.mark.parametrize(("text", "message"), OTHER_VERSIONS)
def test_drafts_of_another_version_are_read(text: str, message: HotMessage) -> None:
    """Its jobs price no row, its trees have no report, or more fields than this version knows."""
    assert type(message).read(text) == message


def test_events_are_stored_as_before() -> None:
    text, stats = stored_texts(EVENT)
    assert (text, stats) == (EVENT_TEXT, EVENT_TEXT[EVENT_TEXT.index('"stats":') + len('"stats":') : -1])
    assert Event.read(text) == EVENT
    assert stored_texts(Event(offset=3, finish_reason=FinishReason.LENGTH)) == (
        '{"offset":3,"finish_reason":"length","stats":{}}',
        "{}",
    )


def test_clients_are_shown_all_statistics() -> None:
    assert json.loads(json.dumps(EVENT.stats.as_dict())) == {
        "rounds": 1,
        "drafted": 2,
        "accepted": 1,
        "by_drafter": {"a": {"drafted": 2, "accepted": 0}},
        "first_token_s": None,
        "last_token_s": 1.7e9,
        "reused": 0,
    }


JOB = WRITTEN[0][1]
WRONG = [
    ("", ToDrafter),
    ("[]", ToDrafter),
    ('{"jobs":' + "[" * 100_000, ToDrafter),
    ('{"trees":[{"request_id":"r","base":3}]}', ToVerifier),
    ('{"secret":1}', ToVerifier),
    (JOB.replace('"base":3', '"base":0'), ToDrafter),
    (JOB.replace('"base":3', '"base":"3x"'), ToDrafter),
    (JOB.replace('"tokens":[4,5]', '"tokens":[4,-5]'), ToDrafter),
    (JOB.replace('"max_draft_tokens":4', '"max_draft_tokens":65'), ToDrafter),
    (JOB.replace('"prompt_length":2', '"prompt_length":0'), ToDrafter),
    (JOB.replace('"start":1', '"start":-1'), ToDrafter),
    (JOB.replace('"temperature":0.5', '"temperature":-0.5'), ToDrafter),
    (JOB.replace('"state":null', '"state":"' + "A" * 65_537 + '"'), ToDrafter),
    (JOB.replace('"survival":0.25', '"survival":1.25'), ToDrafter),
    (JOB.replace('"survival":0.25', '"survival":NaN'), ToDrafter),
    (JOB.replace('"tenant":"public"', '"tenant":7'), ToDrafter),
    (JOB.replace('"tenant":"public"', '"tenant":"\ud800"'), ToDrafter),
    (EVENT_TEXT.replace('"offset":0', '"offset":-1'), Event),
    (EVENT_TEXT.replace('"logprob":-0.5', '"logprob":"low"'), Event),
    (EVENT_TEXT.replace('"stop"', '"bored"'), Event),
]


@pytest.mark.parametrize(("text", "kind"), WRONG)
def test_what_is_no_message_is_refused_where_it_is_read(text: str, kind: type[HotMessage]) -> None:
    with pytest.raises(MessageError) as found:
        kind.read(text)
    assert len(str(found.value)) < 300, "its text is no part of the error: it may hold a prompt"
