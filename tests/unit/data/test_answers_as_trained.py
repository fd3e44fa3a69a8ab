"""Whether training finds an answer's own tokens: what regenerate stores depends on it."""

from types import SimpleNamespace

import pytest
from data_fakes import BROKEN, CHATML, TAGS, THINKING, chat, ids, tokenizer

from specdraft.commands import encode_messages
from specdraft.decoding import SamplingParams
from specdraft.regenerate.engine import Engine

SAID = chat("user: hello")
# keeps no thought, not even the last one's
STRIPS = CHATML.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")


@pytest.mark.parametrize(
    ("template", "text", "alike"),
    [
        (CHATML, "fine thanks", True),
        (TAGS, "fine thanks", True),
        (THINKING, "<think> a </think> fine", True),
        (BROKEN, "fine", False),
        (STRIPS, "fine thanks", True),
        (STRIPS, "<think> a </think> fine", False),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_the_template_decides(template, text, alike, finished):
    tok = tokenizer(template)
    stop = ids(tok, "<|im_end|>")
    target = SimpleNamespace(tokenizer=tok, stop_token_ids=tuple(stop))
    engine = Engine(target, SamplingParams(), 9, 1)
    body = tok(text, add_special_tokens=False)["input_ids"]
    tokens = [*body, *(stop if finished else [])]
    assert engine._learnt_alike(SAID, encode_messages(tok, SAID), tokens, text) is alike


def test_options_reach_the_prompt():
    tok = tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}{{ ' fine' if polite else '' }}")
    assert encode_messages(tok, SAID) == ids(tok, "hello")
    assert encode_messages(tok, SAID, {"polite": True}) == ids(tok, "hello fine")
