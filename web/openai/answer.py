"""Answer a body by the deployment: submit its requests, then wait for their texts, or stream them."""

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Event as Flag
from typing import Protocol

from flask import Response
from werkzeug.exceptions import ServiceUnavailable

from app.errors import InvalidRequest, UnknownModel
from app.messages import Record
from app.request import GenerateRequest
from web.api.disconnects import DisconnectWatcher
from web.api.http_io import client, event_stream, json_answer
from web.api.stream_limits import StreamLimits
from web.api.submit import submit
from web.auth import tenant
from web.openai.call import STOPPING, Call, frames, whole
from web.openai.text_stream import Echo
from web.openai.writers import Head, ResponseWriter
from workers.deployment import Deployment


class CallBody(Protocol):
    @property
    def model(self) -> str: ...

    @property
    def n(self) -> int | None:
        """Return how many texts of each prompt are wanted."""
        ...

    @property
    def stream(self) -> bool | None: ...

    def requests(self, most_tokens: int, sampling: Mapping[str, float]) -> list[GenerateRequest]:
        """Return the requests, those of one prompt side by side. Raises InvalidBody, Unsupported.

        `sampling`: of a caller who does not say how.
        """
        ...

    def names(self) -> dict[str, str]:
        """Map fields of a generate request to the caller's names."""
        ...


@dataclass(frozen=True, slots=True)
class Answers:
    deployment: Deployment
    disconnects: DisconnectWatcher
    stream_limits: StreamLimits
    stopping: Flag

    def answer(self, body: CallBody, writer: ResponseWriter, echo: Echo = Echo.NO) -> Response:
        check_model(self.deployment, body.model)
        # OpenAI's default is to sample, unless the model's makers say more.
        sampling = {"temperature": 1.0, **self.deployment.tokenizer.sampling}
        requests = body.requests(self.deployment.settings.max_tokens, sampling)
        records = _submit(self.deployment, requests, body.names())
        head = _head(self.deployment, writer, records)
        prompts = len(records) // (body.n or 1)
        call = Call(records=records, prompts=prompts, writer=writer, head=head, echo=echo)
        watched = self.disconnects.watched(call.ids, client().is_gone)
        if body.stream:
            response = event_stream(frames(self.deployment, call, self.stopping, watched, client()))
            # one thread, however many texts
            response.call_on_close(self.stream_limits.take(records[0].id, tenant()))
        else:
            with self.stream_limits.taken(records[0].id, tenant()):
                answer = whole(self.deployment, call, self.stopping, watched)
            if answer is None:
                raise ServiceUnavailable(STOPPING)
            response = json_answer(answer)
        response.headers["X-Request-Id"] = call.head.id
        return response


def check_model(deployment: Deployment, requested: str | None) -> None:
    """Raise UnknownModel for another name than the served one; None names it, too."""
    served = deployment.settings.model_name
    if requested not in (served, None):
        raise UnknownModel(str(requested), served)


def _submit(deployment: Deployment, requests: list[GenerateRequest], names: dict[str, str]) -> list[Record]:
    """Submit as `submit` does; errors name the caller's fields."""
    try:
        return submit(deployment, requests)
    except InvalidRequest as error:
        if error.field in names:
            raise InvalidRequest(names[error.field], error.message) from error
        raise


def _head(deployment: Deployment, writer: ResponseWriter, records: list[Record]) -> Head:
    record = records[0]
    target = deployment.requests.target(record.id)
    return Head(
        id=writer.prefix + record.id,
        created=int(record.created_s),
        model=deployment.settings.model_name,
        system_fingerprint=f"fp_{target}" if target else None,
        tokenizer=deployment.tokenizer,
        top=record.logprobs,
        prompts=[one.prompt_ids for one in records],
    )
