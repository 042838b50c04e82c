"""Test calls of tools: the syntax that a template shows, the grammar of it, and the parts of an answer in it."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from app.answer_form import Function, FunctionCall, Thinking, Tool, ToolCall
from app.engine.text.answer_parts import AnswerParts, PartStream, calls_of
from app.engine.text.call_syntax import DESCRIBED, SYNTAXES, CallSyntax
from app.engine.text.tokenizer import Tokenizer
from app.request import ChatMessage, Conversation
from tests.models import model_dir

XML, SMOLLM2, MISTRAL, MISTRAL_IDS, MISTRAL_LIST, LLAMA = SYNTAXES
EOS = "<eos>"
CHATML = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
TEMPLATES = {
    "qwen": "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}" + CHATML + "{% for c in "
    "m.tool_calls or [] %}\n<tool_call>\n" + '{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}",
    "deepseek": CHATML + "{% endfor %}<|assistant|><think>\n",
    "llama": "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{% if m.tool_calls %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}",
    "mistral": "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{% if m.tool_calls %}"
    "[TOOL_CALLS] [{% for c in m.tool_calls %}{{ (c.function | tojson)[:-1] }}, "
    '"id": "{{ c.id }}"}{% if c.id | length != 9 %}{{ raise_exception("nine") }}{% endif %}{% endfor %}]'
    "{% elif m.role == 'system' %}{{ raise_exception('no system') }}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "mistral args": "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}"
    "{% endfor %}{% endfor %}",
    "smollm3": "{% if xml_tools %}{% for t in xml_tools %}{{ t }}{% endfor %}<tool_call>{% endif %}"
    + CHATML
    + "{% endfor %}",
    "no tools": CHATML + "{% endfor %}",
    "own syntax": "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    + CHATML
    + "{% for c in m.tool_calls or [] %}"
    "<tool_call><function={{ c.function.name }}></tool_call>{% endfor %}{% endfor %}",
}
WEATHER = Tool(
    function=Function(
        name="get_weather",
        description="the weather",
        parameters={
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    )
)
TIME = Tool(function=Function(name="time"))
CALLS = (
    ToolCall(id="abcdefghi", function=FunctionCall(name="get_weather", arguments='{"city": "}\\"{Ö", "days": 2}')),
    ToolCall(id="123456789", function=FunctionCall(name="time", arguments="{}")),
)


def byte_tokenizer(folder: Path, template: str, markers: tuple[str, ...] = ()) -> Tokenizer:
    """Make a tokenizer of bytes and of `markers`, of which those in brackets are special tokens."""
    vocab = {token: i for i, token in enumerate([EOS, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([EOS, *(one for one in markers if one.startswith("["))])
    backend.add_tokens([tokenizers.AddedToken(one, normalized=False) for one in markers if one.startswith("<")])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template)
    (folder / "config.json").write_text(
        json.dumps({"vocab_size": len(vocab) + len(markers), "max_position_embeddings": 4096, "eos_token_id": 0})
    )
    return Tokenizer(folder)


def asked(*messages: ChatMessage, tools: tuple[Tool, ...] = (WEATHER, TIME), **fields: Any) -> Conversation:
    return Conversation(messages=messages or (ChatMessage(role="user", content="Hi"),), tools=tools, **fields)


def joined(parts: list[AnswerParts]) -> tuple[str, str, tuple[ToolCall, ...]]:
    calls = [one for part in parts for one in part.calls]
    return "".join(part.content for part in parts), "".join(part.reasoning for part in parts), calls_of(calls)


def read(
    text: str, syntax: CallSyntax | None, thinking: Thinking = Thinking.NO, cuts: list[int] | None = None
) -> tuple[str, str, tuple[ToolCall, ...]]:
    stream, bounds = PartStream("r", thinking, syntax), [0, *sorted(cuts or []), len(text)]
    parts = [stream.feed(text[start:end]) for start, end in zip(bounds, bounds[1:], strict=False)]
    return joined([*parts, stream.feed("", is_end=True)])


@pytest.mark.parametrize(
    ("name", "syntax"),
    [
        ("qwen", XML), ("llama", LLAMA), ("mistral", MISTRAL_IDS), ("mistral args", MISTRAL), ("smollm3", XML),
        ("no tools", DESCRIBED), ("own syntax", DESCRIBED),
    ],
)  # fmt: skip
def test_the_template_tells_the_syntax(name: str, syntax: CallSyntax, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(tmp_path, TEMPLATES[name])
    assert tokenizer.call_syntax == syntax
    turns = [
        ChatMessage(role="user", content="Weather?"),
        ChatMessage(role="assistant", tool_calls=CALLS[:1]),
        ChatMessage(role="tool", content="sunny", tool_call_id="abcdefghi"),
    ]
    text = tokenizer.decode(tokenizer.conversation(asked(*turns))[0])
    for part in ("the weather", "Weather?", "sunny"):
        assert part in text
    if name != "own syntax":  # there the template writes its own
        content, _, calls = read(text[text.index("Weather?") :].replace("[TOOL_CALLS] [", "[TOOL_CALLS]["), syntax)
        assert "get_weather" not in content or name == "llama"
        assert [one.function.name for one in calls] == ["get_weather"] or name == "llama"


@pytest.mark.parametrize("syntax", SYNTAXES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(cuts=st.lists(st.integers(0, 300), max_size=12), text=st.sampled_from(["", "Let me see.\n", "<tool"]))
def test_a_written_call_is_read_whatever_its_cuts(syntax: CallSyntax, cuts: list[int], text: str) -> None:
    calls = CALLS if syntax.between is not None else CALLS[:1]
    text = text if syntax.after_text else ""
    written = text + syntax.write(calls)
    content, reasoning, found = read(written, syntax, cuts=[min(cut, len(written)) for cut in cuts])
    assert (content, reasoning) == (text, "")
    assert [(one.function.name, json.loads(one.function.arguments)) for one in found] == [
        (one.function.name, json.loads(one.function.arguments)) for one in calls
    ]
    assert len({one.id for one in found}) == len(calls) and all(len(one.id) == 9 for one in found)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 80), max_size=10),
    st.sampled_from(
        [
            ("<think>\nHm <b>\n</think>\n\nYes", Thinking.FIRST, ("Yes", "Hm <b>")),
            ("Hm\n\nhm </think> Yes", Thinking.INSIDE, ("Yes", "Hm\n\nhm")),
            ("Hm", Thinking.INSIDE, ("", "Hm")),
            ("<thin", Thinking.FIRST, ("<thin", "")),
            ("<think>a</think>", Thinking.NO, ("<think>a</think>", "")),
        ]
    ),
)
def test_reasoning_is_split_off(cuts: list[int], case: tuple[str, Thinking, tuple[str, str]]) -> None:
    text, thinking, expected = case
    assert read(text, XML, thinking, [min(cut, len(text)) for cut in cuts])[:2] == expected


def test_a_call_that_was_cut_off_keeps_its_arguments() -> None:
    text = XML.write(CALLS[:1])
    content, _, (call,) = read(text[: text.index("}")], XML)
    assert content == "" and call.function.arguments == '{"city": "'
    assert read(text[:15], XML) == (text[:15], "", ())


@pytest.mark.parametrize("is_token", [False, True])
@pytest.mark.parametrize("syntax", SYNTAXES)
def test_a_grammar_takes_its_own_calls_and_no_others(syntax: CallSyntax, is_token: bool, tmp_path: Path) -> None:
    name = {MISTRAL: "mistral args", MISTRAL_IDS: "mistral", MISTRAL_LIST: "mistral"}.get(syntax, "no tools")
    tokenizer = byte_tokenizer(tmp_path, TEMPLATES[name], syntax.markers if is_token else ())
    functions = [WEATHER.function, TIME.function]
    several = syntax.between is not None
    calls = CALLS if several else CALLS[:1]

    def takes(text: str, *, is_required: bool = False, several: bool = True) -> bool:
        grammar = syntax.grammar(functions, tokenizer.token_of, is_required=is_required, several=several)
        assert tokenizer.grammars.fault(grammar) is None
        mask = tokenizer.grammars.state(grammar).mask(tokenizer.encode(text))
        return mask is not None and bool(mask[0])

    for text in (syntax.write(calls), "".join(syntax.write(calls).split("\n"))):
        assert takes(text) and takes(text, is_required=True)
    wrong = (("time", "tim"), ('"days": 2', '"days": "x"'), ('"city"', '"town"'))
    for old, new in wrong if several else wrong[1:]:
        assert not takes(syntax.write(calls).replace(old, new))
    assert not several or not takes(syntax.write(calls), several=False)
    assert takes("Let me see.") and not takes("Let me see.", is_required=True)
    assert takes("Let me see. " + syntax.write(calls)) and not takes(syntax.write(calls) + " And more")
    assert read(tokenizer.decode(tokenizer.encode("Öh " + syntax.write(calls))), syntax)[0] == (
        "Öh " if syntax.after_text else "Öh " + syntax.write(calls)
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("syntax", SYNTAXES[:4])
def test_any_walk_through_the_grammar_is_read_as_valid_calls(syntax: CallSyntax, seed: int) -> None:
    tokenizer, draw = Tokenizer(model_dir()), random.Random(seed)
    grammar = syntax.grammar([WEATHER.function, TIME.function], tokenizer.token_of, is_required=True, several=False)
    state = tokenizer.grammars.state(grammar)
    tokens: list[int] = []
    while 2 not in tokens and len(tokens) < 300:
        mask = state.mask(tokens)
        assert mask is not None
        tokens.append(int(draw.choice(np.flatnonzero(mask))))
    content, _, (call,) = read(tokenizer.decode(tokens[:-1]), syntax)
    arguments = json.loads(call.function.arguments)
    assert content == "" and call.function.name in ("get_weather", "time")
    assert arguments == {} if call.function.name == "time" else {"city"} <= arguments.keys() <= {"city", "days"}


def test_thinking_comes_before_a_required_call(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(tmp_path, TEMPLATES["qwen"] + "{# <think> #}", ("<think>", "</think>", "<tool_call>"))
    for fields, thinking, text, expected in (
        ({}, Thinking.FIRST, "<think>Hm</think>\n", True),
        ({}, Thinking.FIRST, "Hm</think>\n", False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, Thinking.NO, "<think>Hm</think>\n", False),
    ):
        _, found = tokenizer.conversation(asked(**fields))
        assert found is thinking
        grammar = XML.grammar([TIME.function], tokenizer.token_of, is_required=True, several=True, thinking=found)
        mask = tokenizer.grammars.state(grammar).mask(tokenizer.encode(text + XML.write(CALLS[1:])))
        assert (mask is not None and bool(mask[0])) is expected
    inside = byte_tokenizer(tmp_path / "b", TEMPLATES["deepseek"]).conversation(asked(tools=()))
    assert inside[1] is Thinking.INSIDE


@pytest.mark.parametrize("cut", range(0, 70, 3))
def test_a_call_begun_in_the_last_message_is_gone_on_with(cut: int) -> None:
    text, tokenizer = "Öh " + DESCRIBED.write(CALLS), Tokenizer(model_dir())
    grammar = DESCRIBED.grammar([WEATHER.function, TIME.function], tokenizer.token_of, is_required=False, several=True)
    mask = tokenizer.grammars.state(grammar, tokenizer.encode(text[:cut])).mask(tokenizer.encode(text[cut:]))
    assert mask is not None and mask[2]
    stream = PartStream("r", Thinking.NO, DESCRIBED, text[:cut])
    content, _, calls = joined([stream.feed(text[cut:]), stream.feed("", is_end=True)])
    assert content == "Öh "[cut:] and calls == read(text, DESCRIBED)[2]
    wrong = text[:cut].replace("get", "bet")
    if wrong != text[:cut]:
        assert "does not follow" in (tokenizer.grammars.fault(grammar, tokenizer.encode(wrong)) or "")
    hidden = PartStream("r", Thinking.NO, DESCRIBED, "<tool")
    assert joined([hidden.feed("!"), hidden.feed("", is_end=True)])[0] == "!"


def test_a_last_message_is_gone_on_with(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(tmp_path, "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}")
    ends = [ChatMessage(role="user", content="a"), ChatMessage(role="assistant", content=" b c ")]
    found = tokenizer.conversation(asked(*ends, tools=(), continue_final_message=True))[0]
    assert tokenizer.decode(found) == "<a><b c"
