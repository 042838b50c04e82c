"""Make malformed HTTP requests: each a name and the bytes that are sent. CANARY stands in every prompt."""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from app.request import GenerateRequest
from web.anthropic.requests import CountBody, MessagesBody
from web.openai.requests import ChatBody, CompletionBody
from web.openai.tokens import DetokenizeBody, TokenizeBody
from web.responses.requests import ResponsesBody

Case = tuple[str, bytes]
CANARY = "canary-7f3a9d1e"
MIB = 2**20
DEEP = 100_000
PROMPT = f'"Name a bird. {CANARY}"'
TALK = {"model": '"?"', "messages": f'[{{"role":"user","content":{PROMPT}}}]'}
ROUTES: dict[str, tuple[type[Any], dict[str, str]]] = {  # JSON text by field: short answers, whatever else is wrong
    "/api/generate": (GenerateRequest, {"prompt": PROMPT, "max_tokens": "2", "stop": '["a","e"]'}),
    "/v1/chat/completions": (ChatBody, {**TALK, "max_tokens": "2", "stop": '["a","e"]'}),
    "/v1/completions": (CompletionBody, {"model": '"?"', "prompt": PROMPT, "max_tokens": "2", "stop": '["a","e"]'}),
    "/v1/responses": (ResponsesBody, {"model": '"?"', "input": PROMPT, "max_output_tokens": "2"}),
    "/v1/messages": (MessagesBody, {**TALK, "max_tokens": "2"}),
    "/v1/messages/count_tokens": (CountBody, TALK),
    "/tokenize": (TokenizeBody, {"prompt": PROMPT}),
    "/detokenize": (DetokenizeBody, {"tokens": "[1, 2]"}),
}
NATIVE = {"stream": '"x"', "wait": '"x"', f"unknown {CANARY}": "1"}  # fields that GenerateRequest has not
VALUES = (
    "null", "true", "false", "-1", "0", "1.5", "1e308", "1e999", "NaN", "-Infinity", "9" * 5000, '""', f'"{CANARY}"',
    '"\\ud800"', '"\\u0000\\u001b[2J\\n"', "[]", "[null]", "[[[[[]]]]]", "{}", '{"a":{"b":[]}}', f'"{"x" * 70_000}"',
)  # fmt: skip
SHAPES = {
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "number": b"7",
    "text": b'"x"',
    "open": b'{"prompt":',
    "twice": b"{}{}",
    "not UTF-8": b'{"prompt":"\xff\xfe"}',
    "UTF-16": '{"prompt":"x"}'.encode("utf-16"),
    "raw surrogate": b'{"prompt":"\xed\xa0\x80"}',
    "mark": b'\xef\xbb\xbf{"prompt":"x"}',
    "deep lists": b"[" * DEEP,
    "deep objects": b'{"a":' * DEEP,
    "closed deep": b'{"prompt":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "one field twice": b'{"prompt":"x","prompt":7,"max_tokens":2}',
    "1.5 MB": b'{"prompt":"' + b"x" * 1_500_000 + b'"}',
    "10 MB": b'{"prompt":"' + b"x" * 10_000_000 + b'"}',
    "zeros": bytes(1000),
}
FLOODS = {
    "logit_bias": "{" + ",".join(f'"{i}":1' for i in range(60_000)) + "}",
    "allowed_token_ids": json.dumps([*range(150_000)]),
    "stop": json.dumps(["zz"] * 100_000),
    "messages": json.dumps([{"role": "user", "content": CANARY}] * 15_000),
    "prompt": f'"{CANARY * 60_000}"',
    "n": "1000000000",
    "logprobs": "1000000000",
    "speculation": json.dumps({"drafters": ["x"] * 100_000}),
}
MIXED: dict[str, tuple[dict[str, str], ...]] = {  # by path: fields that are wrong, or rare, only together
    "/v1/completions": (
        *({"prompt": ids} for ids in ("[-1]", "[999999999]", '[[1],["a"]]', "[[1],[]]", f"[{'1,' * 70_000}1]")),
        {"echo": "true", "max_tokens": "0", "logprobs": "20", "n": "16"},
        {"echo": "true", "stream": "true"},
        {"max_tokens": "0"},
    ),
    "/v1/chat/completions": (
        {"messages": '[{"role":"assistant","tool_calls":[{"function":{"name":"a","arguments":"{"}}]}]'},
        {"messages": '[{"role":"tool","content":"a","tool_call_id":"none"}]'},
        {"messages": '[{"role":"user","content":" "}]', "continue_final_message": "true"},
    ),
    "/v1/messages": tuple(
        {"messages": f'[{{"role":"user","content":[{block}]}}]'}
        for block in ('{"type":"image"}', '{"type":"tool_result","tool_use_id":"none"}', '{"type":"thinking"}', "7")
    ),
    "/v1/responses": ({"input": '[{"type":"function_call_output","call_id":"none","output":"a"}]'},),
    "/detokenize": ({"tokens": "[-1]"}, {"tokens": "[999999999]"}),
}
PATTERNS = ("(a+)+$", "((a{1,100}){1,100}){1,100}", "(?=x)y", "[", "\\", "(", "a{1000000000}", "\\p{L}*" * 99, "\u0000")
SCHEMAS: tuple[Any, ...] = (
    {"$ref": "http://127.0.0.1:9/x.json"},
    {"$ref": "file:///etc/passwd"},
    {"$ref": "#"},
    {"$ref": "#/$defs/none"},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"$defs": {str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 9} for i in range(20)}, "$ref": "#/$defs/0"},
    {"type": "nope"},
    {"type": []},
    {"type": 7},
    {"enum": []},
    {"enum": [*range(20_000)]},
    {"const": CANARY},
    {"type": "string", "minLength": 10**9},
    {"type": "string", "minLength": -1, "maxLength": "x"},
    {"type": "array", "minItems": 10**9},
    {"type": "integer", "multipleOf": 1e-300},
    {"type": "integer", "minimum": 10**400},
    {"allOf": [{"type": "string"}] * 40},
    {"anyOf": [{"type": "object", "properties": {str(i): {}}} for i in range(300)]},
    {"not": {}},
    {"type": "object", "properties": {str(i): {"type": "string"} for i in range(500)}},
    {"patternProperties": {"(a+)+$": {}}},
    *({"type": "string", "pattern": pattern} for pattern in PATTERNS),
)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "X" * 5000)
PLACES = ("/", "/healthz", "/metrics", "/openapi.json", "/dashboard", "/v1/models", "/api/requests/none", *ROUTES)
IDS = ("none", "..", "%2e%2e%2f%2e%2e", "*", "%00", "%0a%1b[2J", "%ff", "a" * 5000, "%C3%BC", "a%20b", "?", "-1", "{}")
OFFSETS = ("-1", "1.5", "x", "", "9" * 5000, "1e3", "%00", "%D9%A3", "0&offset=1", "[]")
TRAVERSALS = (
    "/static/../app/config.py", "/static/%2e%2e/%2e%2e/etc/passwd", "/static/..%5c..%5cx", "//etc/passwd",
    "/static/%00", "/..;/metrics", "http://evil.example/metrics", "/" + "a/" * 30_000, "/?" + "a=b&" * 30_000, "*", "",
)  # fmt: skip
HOSTS = ("evil.example", "localhost.evil.example", "0x7f.1", "", "a b", "[::1", "localhost:99999", "x" * 5000, "%00")
WIRE = {  # not even requests, or of two readings
    "TE and CL": b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked"
    b"\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "two CL": b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nContent-Length: 45\r\n\r\n"
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "two Hosts": b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n",
    "noise": bytes(range(256)) * 40 + b"\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/9.9": b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "folded header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\n  c\r\n\r\n",
    "space before colon": b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "NUL in a header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: \x00\r\n\r\n",
    "no name": b"GET / HTTP/1.1\r\nHost: localhost\r\n: x\r\n\r\n",
}
LENGTHS = ("-1", "+4", "0x4", "4, 5", "9" * 50, "x", "")
CODINGS = ("identity", "gzip", "chunked, chunked", "xchunked", " chunked", "")
CHUNKS = (
    b"z\r\nx\r\n0\r\n\r\n",
    b"-1\r\nx\r\n",
    b"f" * 40 + b"\r\nx\r\n",
    b"1;" + b"a" * 300_000 + b"\r\nx\r\n0\r\n\r\n",
    b"100000\r\n" + bytes(2**20) + b"\r\n",
    (b"10000\r\n" + bytes(2**16) + b"\r\n") * 160 + b"0\r\n\r\n",
)
SHORT_SCHEMAS = [one for one in SCHEMAS if len(str(one)) < 600]  # a tool's stands in the prompt


def call(method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """Write a request. A header of None's name replaces the usual one."""
    usual = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": str(len(body))}
    lines = [f"{name}: {value}" for name, value in (usual | {"Connection": "close"} | dict(headers or {})).items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode() + body


def body_with(fields: Mapping[str, str]) -> bytes:
    """Write an object of fields' JSON texts, which need not be JSON."""
    return ("{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in fields.items()) + "}").encode()


def groups(model: str, headers: Mapping[str, str]) -> dict[str, list[Case]]:
    """Make all cases, by group; `headers` go with each that is a whole request."""
    sent = dict(headers)
    return {
        "fields": [(name, call("POST", path, body, sent)) for name, path, body in _fields(model)],
        "bodies": [
            (f"{path}: {name}", call("POST", path, body, sent)) for path in ROUTES for name, body in SHAPES.items()
        ],
        "paths": [(name, call(method, path, b"", sent | more)) for name, method, path, more in _paths()],
        "wire": [*_wire(sent)],
    }


def _fields(model: str) -> Iterator[tuple[str, str, bytes]]:
    for path, (read, fields) in ROUTES.items():
        usual = {name: text.replace('"?"', json.dumps(model)) for name, text in fields.items()}
        names = [*read.model_fields, *(NATIVE if path == "/api/generate" else ())]
        for name, text in itertools.product(names, VALUES):
            yield f"{path}: {name} = {text[:24]}", path, body_with(_instead(usual, name) | {name: text})
        for name, text in FLOODS.items():
            yield f"{path}: many {name}", path, body_with(_instead(usual, name) | {name: text})
        for schema in SCHEMAS if "response_format" in read.model_fields else ():
            form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
            yield f"{path}: schema {str(schema)[:40]}", path, body_with(usual | {"response_format": json.dumps(form)})
        for schema in SHORT_SCHEMAS if "tools" in read.model_fields else ():
            yield f"{path}: tool of {str(schema)[:40]}", path, body_with(usual | _tool(path, schema))
        kinds = ("regex", "grammar") if "structured_outputs" in read.model_fields else ()
        for kind, pattern in itertools.product(kinds, PATTERNS):
            wish = json.dumps({kind: pattern})
            yield f"{path}: {kind} {pattern[:20]}", path, body_with(usual | {"structured_outputs": wish})
        deep = '{"type":"json_schema","json_schema":{"schema":' + '{"not":' * DEEP + "{}" + "}" * (DEEP + 2)
        yield f"{path}: deep schema", path, body_with(usual | {"response_format": deep})
        for texts in MIXED.get(path, ()):
            yield f"{path}: {texts}", path, body_with(usual | texts)


def _tool(path: str, schema: Any) -> dict[str, str]:
    """Write fields that make an answer call a tool, which has the shape of each API."""
    tool = {"name": "a", "parameters": schema, "input_schema": schema, "function": {"name": "a", "parameters": schema}}
    if path.startswith("/v1/messages"):
        return {"tools": json.dumps([tool]), "tool_choice": '{"type":"any"}'}
    chosen = {} if path == "/tokenize" else {"tool_choice": '"required"'}
    return {"tools": json.dumps([tool | {"type": "function"}]), **chosen}


def _instead(usual: dict[str, str], name: str) -> dict[str, str]:
    """Leave out what goes not with the field."""
    return {known: text for known, text in usual.items() if {known, name} != {"prompt", "messages"}}


def _paths() -> Iterator[tuple[str, str, str, dict[str, str]]]:
    for method, path in itertools.product(METHODS, PLACES):
        yield f"{method[:9]} {path}", method, path, {}
    for name in IDS:
        for method, end in (("GET", ""), ("DELETE", ""), ("GET", "/stream"), ("GET", "/stream?offset=1")):
            yield f"{method} {name[:9]}{end}", method, f"/api/requests/{name}{end}", {}
    for offset in OFFSETS:
        yield f"offset {offset[:9]}", "GET", f"/api/requests/none/stream?offset={offset}", {}
        yield f"Last-Event-ID {offset[:9]}", "GET", "/api/requests/none/stream", {"Last-Event-ID": offset}
    for path in TRAVERSALS:
        yield f"path {path[:30]}", "GET", path, {}
    for host, path in itertools.product(HOSTS, ("/healthz", "/api/requests/none")):
        yield f"Host {host[:20]} {path}", "GET", path, {"Host": host}
    for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/json; charset=utf-16"):
        yield f"type {kind}", "POST", "/api/generate", {"Content-Type": kind}


def _wire(sent: dict[str, str]) -> Iterator[Case]:
    yield from WIRE.items()
    for length in LENGTHS:
        yield f"length {length[:9]}", call("POST", "/api/generate", b"{}", sent | {"Content-Length": length})
    for coding in CODINGS:
        yield f"coding {coding}", call("POST", "/api/generate", b"{}", sent | {"Transfer-Encoding": coding})
    for number, chunks in enumerate(CHUNKS):
        whole = call("POST", "/api/generate", b"", sent | {"Transfer-Encoding": "chunked"})
        yield f"chunks {number}", whole.replace(b"Content-Length: 0\r\n", b"") + chunks
    many = {f"X-{i}": "a" for i in range(20_000)}
    for name, more in (("many headers", many), ("a long header", {"X-A": "a" * MIB}), ("long name", {"a" * MIB: "a"})):
        yield name, call("GET", "/healthz", b"", sent | more)
    yield "a long URL", call("GET", "/healthz?" + "a" * MIB, b"", sent)
