"""Write a conversation by a model's chat template, with tools whether the template knows them or not."""

import json
from collections.abc import Sequence
from typing import Any

from app.answer_form import Function, FunctionCall, Thinking, Tool, ToolCall
from app.engine.text.call_syntax import DESCRIBED, END_OF_THINK, SYNTAXES, THINK, CallSyntax, syntax_of
from app.engine.text.chat_template import ChatTemplate, Turn
from app.errors import InvalidRequest
from app.request import ChatMessage, Conversation

# What SmolLM2 was trained on, but for a question that needs no tool.
TOOLS = """\
You are an expert in composing functions. You are given a question and a set of possible functions.
Based on the question, you will need to make one or more function/tool calls to achieve the purpose.
If none of the functions can be used, answer the question yourself.

You have access to the following tools:
<tools>{tools}</tools>

The output of a call MUST strictly adhere to the following format.
Please make sure the parameter type is correct.
<tool_call>[
{{"name": "func_name1", "arguments": {{"argument1": "value1", "argument2": "value2"}}}},
... (more tool calls as required)
]</tool_call>"""
RESULT = "<tool_response>\n{content}\n</tool_response>"
QUESTION: Turn = {"role": "user", "content": "probe question"}
PROBE = Tool(function=Function(name="probe_tool", description="probe text", parameters={"type": "object"}))
PROBE_CALL = ToolCall(id="probeid12", function=FunctionCall(name="probe_tool", arguments='{"probe": "value"}'))


class Conversations:
    """Find out once, by small conversations, what a template writes itself; the rest is written into contents."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._thinks = THINK in template.source
        self._has_system = "probe system" in self._try([{"role": "system", "content": "probe system"}, QUESTION])
        question = self._try([QUESTION], [PROBE])
        called = [QUESTION, {"role": "assistant", "content": "", "tool_calls": [_call(PROBE_CALL)]}]
        answer = {"role": "tool", "content": "probe result", "tool_call_id": PROBE_CALL.id, "name": "probe_tool"}
        with_call, with_result = self._try(called, [PROBE]), self._try([*called, answer], [PROBE])
        syntax = syntax_of(with_call or with_result, [PROBE_CALL])
        self._writes_calls = syntax is not None
        self._writes_results = "probe result" in with_result
        if syntax is None and with_call.count("probe_tool") <= question.count("probe_tool"):
            # It tells the model what calls look like, and leaves out those of the conversation.
            syntax = next((one for one in SYNTAXES if one.markers and one.trigger in question), None)
        self._writes_tools = syntax is not None and "probe text" in question
        self.syntax: CallSyntax = syntax if syntax is not None and self._writes_tools else DESCRIBED

    def render(self, conversation: Conversation) -> tuple[str, Thinking]:
        """Return the prompt's text. Raises InvalidRequest."""
        tools = [] if conversation.tool_choice == "none" else conversation.tools
        turns = self._turns(conversation.messages or (), [] if self._writes_tools else tools)
        variables = {
            **conversation.chat_template_kwargs,
            "add_generation_prompt": conversation.add_generation_prompt and not conversation.continue_final_message,
        }
        if conversation.documents:
            variables["documents"] = list(conversation.documents)
        if tools and self._writes_tools:
            variables |= _variables(tools)
        text = self._template.render(turns, variables)
        if conversation.continue_final_message:
            text = _up_to(text, turns[-1]["content"])
        return text, self._thinking(text)

    def _turns(self, messages: Sequence[ChatMessage], described: Sequence[Tool]) -> list[Turn]:
        turns = [self._turn(message) for message in messages]
        if described:
            text = TOOLS.format(tools=json.dumps([_tool(one) for one in described], ensure_ascii=False))
            at = next(
                (i for i, turn in enumerate(turns) if turn["role"] == ("system", "user")[not self._has_system]), -1
            )
            if at >= 0:
                turns[at] = {**turns[at], "content": f"{turns[at]['content']}\n\n{text}"}
            else:
                turns.insert(0, {"role": "system", "content": text})
        return turns

    def _turn(self, message: ChatMessage) -> Turn:
        turn: Turn = {"role": message.role, "content": message.content}
        if message.reasoning_content is not None:
            turn["reasoning_content"] = message.reasoning_content
        if message.tool_calls and self._writes_calls:
            turn["tool_calls"] = [_call(one) for one in message.tool_calls]
        elif message.tool_calls:
            turn["content"] += self.syntax.write(message.tool_calls)
        if message.tool_call_id is not None and not self._writes_results:
            return {"role": "user", "content": RESULT.format(content=message.content)}
        for name in ("name", "tool_call_id"):
            if (value := getattr(message, name)) is not None:
                turn[name] = value
        return turn

    def _thinking(self, text: str) -> Thinking:
        if not self._thinks:
            return Thinking.NO
        end = text.rstrip()
        if end.endswith(END_OF_THINK):
            return Thinking.NO
        return Thinking.INSIDE if end.endswith(THINK) else Thinking.FIRST

    def _try(self, turns: Sequence[Turn], tools: Sequence[Tool] = ()) -> str:
        """Empty where the template refuses them."""
        try:
            return self._template.render(turns, _variables(tools) if tools else {})
        except InvalidRequest:
            return ""


def _variables(tools: Sequence[Tool]) -> dict[str, Any]:
    found = [_tool(one) for one in tools]
    return {"tools": found, "xml_tools": found}  # the latter is SmolLM3's


def _tool(tool: Tool) -> dict[str, Any]:
    function = tool.function
    description = {} if function.description is None else {"description": function.description}
    parameters = function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": function.name, **description, "parameters": parameters}}


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = json.loads(call.function.arguments)  # templates write JSON of it themselves
    return {"type": "function", "id": call.id, "function": {"name": call.function.name, "arguments": arguments}}


def _up_to(text: str, content: str) -> str:
    """Cut a rendered conversation behind its last message, whose outer white space the template may have removed."""
    at = text.rfind(content.strip())
    if at < 0:
        raise InvalidRequest("continue_final_message", "the model's chat template changes the last message")
    kept = content.lstrip() if text.startswith(content.lstrip(), at) else content.strip()
    return text[: at + len(kept)]
