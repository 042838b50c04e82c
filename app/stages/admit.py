"""Admit a request: a caller's request in, the record that its text depends on out.

Stores nothing and bounds no queue: the store does both at once (`Requests.create`).
"""

import secrets
from collections.abc import Collection

from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from app.errors import InvalidRequest
from app.messages import PUBLIC_TENANT, Record
from app.request import MAX_SEED, ChatMessage, GenerateRequest


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
    _check_format(request, tokenizer)
    _check_drafters(request, drafters)
    # one position of the context must stay free for the first generated token
    most = min(settings.max_prompt_tokens, tokenizer.context_tokens - 1)
    prompt_ids = _prompt_ids(request, tokenizer, most)
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
        json_schema=request.json_schema,
        min_tokens=request.min_tokens,
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


def _check_format(request: GenerateRequest, tokenizer: Tokenizer) -> None:
    schema = request.json_schema
    if schema is None:
        return
    fault = tokenizer.grammars.fault(schema)
    if fault is not None:
        raise InvalidRequest("response_format", fault)


def _check_drafters(request: GenerateRequest, known: Collection[str] | None) -> None:
    unknown = None if known is None else next((n for n in request.speculation.drafters or () if n not in known), None)
    if unknown is not None:
        there_are = ", ".join(sorted(known or ())) or "none"
        raise InvalidRequest(
            "speculation.drafters", f"drafter {unknown!r} does not exist here; the drafters are {there_are}"
        )


def _prompt_ids(request: GenerateRequest, tokenizer: Tokenizer, most: int) -> list[int]:
    if request.prompt_ids is not None:
        return list(request.prompt_ids)
    if request.raw:
        return tokenizer.encode(request.prompt or "", most)
    messages = request.messages or [ChatMessage(role="user", content=request.prompt or "")]
    return tokenizer.chat(messages, most, _input_field(request))


def _check_prompt(field: str, ids: list[int], tokenizer: Tokenizer, most: int) -> None:
    if not ids:
        raise InvalidRequest(field, "must have at least one token")
    if len(ids) > most:
        raise InvalidRequest(field, f"must have at most {most} tokens, not {len(ids)}")
    if max(ids) >= tokenizer.vocab_size:
        raise InvalidRequest(field, f"token id {max(ids)} is outside the vocabulary of {tokenizer.vocab_size} tokens")


def _input_field(request: GenerateRequest) -> str:
    return next(name for name in ("messages", "prompt_ids", "prompt") if getattr(request, name) is not None)
