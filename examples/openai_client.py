"""Ask a running instance through OpenAI's client: python examples/openai_client.py [URL]   (pip install openai)"""

import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"
client = OpenAI(base_url=f"{url}/v1", api_key="-")
model = client.models.list().data[0].id
stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Write a Python class for a stack."}],
    max_tokens=48,
    temperature=0,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage is not None and chunk.usage.completion_tokens_details is not None:
        accepted = chunk.usage.completion_tokens_details.accepted_prediction_tokens
        print(f"\n{chunk.usage.completion_tokens} tokens, {accepted} of them drafted")
