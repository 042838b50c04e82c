"""Admit a request: a caller's request in, the record that its text depends on out.

Stores nothing and bounds no queue: the store does both at once (`Requests.create`).
"""

import secrets
from collections.abc import Collection

from app.answer_form import Thinking
from app.config import Settings
from app.engine.text.call_syntax import END_OF_THINK, THINK
from app.engine.text.grammar import grammar_of, rule_of
from app.engine.text.tokenizer import Tokenizer
from app.errors import InvalidRequest
from app.messages import PUBLIC_TENANT, Record
from app.request import MAX_SEED, GenerateRequest


def admit(
    request: GenerateRequest,
    tokenizer: Tokenizer,
    settings: Settings,
    *,
    request_id: str,
    now_s: float,
    tenant: str = PUBLIC_TENANT,
    is_task: bool = False,
    drafters: Collection[str] | None = None,
) -> Record:
    """Check `request` against the model and the settings, and fill in what it leaves open, the seed too.

    `now_s`: wall clock. `drafters`: those that a request may name; None: any. Raises InvalidRequest.
    """
    if request.max_tokens > settings.max_tokens:
        raise InvalidRequest("max_tokens", f"must be at most {settings.max_tokens}, not {request.max_tokens}")
    _check_vocabulary(request, tokenizer.vocab_size)
    _check_drafters(request, drafters)
    # one position of the context must stay free for the first generated token
    most = min(settings.max_prompt_tokens, tokenizer.context_tokens - 1)
    prompt_ids, thinking = _prompt(request, tokenizer, most)
    _check_prompt(_input_field(request), prompt_ids, tokenizer, most)
    return Record(
        id=request_id,
        tenant=tenant,
        is_task=is_task,
        prompt_ids=tuple(prompt_ids),
        max_tokens=min(request.max_tokens, tokenizer.context_tokens - len(prompt_ids)),
        eos_ids=(*request.stop_token_ids, *(() if request.ignore_eos else tokenizer.eos_ids)),
        sampling=request.sampling(secrets.randbelow(MAX_SEED + 1) if request.seed is None else request.seed),
        speculation=request.speculation,
        stop=request.stop,
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
        grammar=_grammar(request, tokenizer, thinking),
        prefix=request.prefix,
        calls=bool(request.functions),
        thinking=thinking,
        min_tokens=request.min_tokens,
        most_thinking=_most_thinking(request, tokenizer, thinking),
        created_s=now_s,
    )


def _check_vocabulary(request: GenerateRequest, vocab_size: int) -> None:
    for field, ids in (
        ("logit_bias", request.logit_bias),
        ("allowed_token_ids", request.allowed_token_ids or ()),
        ("stop_token_ids", request.stop_token_ids),
    ):
        unknown = next((id_ for id_ in ids if id_ >= vocab_size), None)
        if unknown is not None:
            raise InvalidRequest(field, f"token id {unknown} is outside the vocabulary of {vocab_size} tokens")


def _grammar(request: GenerateRequest, tokenizer: Tokenizer, thinking: Thinking) -> str | None:
    form = None if request.response_format is None else grammar_of(request.response_format)
    prefix = tokenizer.prefix_ids(request.prefix)
    if form is not None and (fault := tokenizer.grammars.fault(form, () if request.functions else prefix)) is not None:
        raise InvalidRequest("response_format", fault)
    if not request.functions:
        return form
    assert tokenizer.call_syntax is not None  # else the prompt was refused
    if request.response_format is not None and request.response_format.type == "grammar":
        raise InvalidRequest("response_format", "must not be a grammar where tools may be called")
    grammar = tokenizer.call_syntax.grammar(
        request.functions,
        tokenizer.token_of,
        is_required=request.tool_choice != "auto",
        several=request.parallel_tool_calls,
        thinking=thinking,
        form=None if form is None else rule_of(form),
    )
    if (fault := tokenizer.grammars.fault(grammar, prefix)) is not None:
        raise InvalidRequest("tools", fault)
    return grammar


def _most_thinking(request: GenerateRequest, tokenizer: Tokenizer, thinking: Thinking) -> int | None:
    most = request.thinking_token_budget
    if most in (None, -1) or thinking is Thinking.NO:
        return None
    if None in (tokenizer.token_of(THINK), tokenizer.token_of(END_OF_THINK)):
        raise InvalidRequest("thinking_token_budget", "needs a model whose marks of reasoning are tokens")
    return most


def _check_drafters(request: GenerateRequest, known: Collection[str] | None) -> None:
    unknown = None if known is None else next((n for n in request.speculation.drafters or () if n not in known), None)
    if unknown is not None:
        there_are = ", ".join(sorted(known or ())) or "none"
        raise InvalidRequest(
            "speculation.drafters", f"drafter {unknown!r} does not exist here; the drafters are {there_are}"
        )


def _prompt(request: GenerateRequest, tokenizer: Tokenizer, most: int) -> tuple[list[int], Thinking]:
    if request.prompt_ids is not None:
        return list(request.prompt_ids), Thinking.NO
    if request.raw:
        return tokenizer.encode(request.prompt or "", most), Thinking.NO
    return tokenizer.conversation(request.conversation, most, _input_field(request))


def _check_prompt(field: str, ids: list[int], tokenizer: Tokenizer, most: int) -> None:
    if not ids:
        raise InvalidRequest(field, "must have at least one token")
    if len(ids) > most:
        raise InvalidRequest(field, f"must have at most {most} tokens, not {len(ids)}")
    if max(ids) >= tokenizer.vocab_size:
        raise InvalidRequest(field, f"token id {max(ids)} is outside the vocabulary of {tokenizer.vocab_size} tokens")


def _input_field(request: GenerateRequest) -> str:
    return next(name for name in ("messages", "prompt_ids", "prompt") if getattr(request, name) is not None)
