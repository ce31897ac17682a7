"""JSON under a schema. What the grammar leaves no choice about is drafted for free."""

import json
import sys

from branchwise import Grammar, Speculator
from branchwise.hub import load

schema = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "large": {"type": "boolean"}},
    "required": ["city", "large"],
    "additionalProperties": False,
}
model, tokenizer = load(sys.argv[1] if len(sys.argv) > 1 else "default")
generation = Speculator(model, tokenizer).complete(
    tokenizer("A city, and whether it is large, as JSON: ").input_ids,
    grammar=Grammar.from_json_schema(schema),
    max_new_tokens=64,
    do_sample=False,
)
print(json.loads(generation.text), f"{generation.tokens_per_step:.2f} tokens per step")
