"""A client for `branchwise serve`, with the package openai: server_client.py [URL]."""

import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = OpenAI(base_url=f"{url}/v1", api_key="any")
(model,) = client.models.list()
messages = [{"role": "user", "content": "Name a river."}]

answer = client.chat.completions.create(model=model.id, messages=messages, max_tokens=24, temperature=0)
print(answer.choices[0].message.content)
print(answer.usage.completion_tokens, "tokens")

for chunk in client.chat.completions.create(
    model=model.id, messages=messages, max_tokens=24, temperature=0.7, seed=1, stream=True
):
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
