"""The contract of prompts on SmolLM2, whose template is ChatML with a system message of its own."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.prompt_contract import (  # noqa: F401 - the test is collected here
    PromptContract,
    conversations,
    hostile_texts,
    test_prompts_are_those_of_the_models_own_template_and_contents_write_no_turns,
)


@pytest.fixture(scope="module")
def contract(smollm2: Path) -> PromptContract:
    return PromptContract(smollm2)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_the_next_prompt_goes_on_from_prompt_and_completion(contract, data):
    messages = data.draw(conversations(contract.marks))
    contract.check_next_turn(messages, data.draw(hostile_texts(contract.marks)), "<|im_end|>")
