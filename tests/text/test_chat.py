"""Chat templates: transformers' text, or one sentence."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from cutaway.errors import CheckpointError, InputError
from cutaway.text import chat
from cutaway.text.chat import render
from cutaway.text.files import load_tokenizer
from tests.text.conftest import Family

Copy = Callable[..., Family]

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief & <kind>."},
    {"role": "user", "content": 'Hi "there"\n  you'},
    {"role": "assistant", "content": "Hello", "reasoning": "a greeting"},
    {"role": "user", "content": [{"type": "text", "text": "é"}]},
]

TEMPLATES = [
    "{{ bos_token }}{% for m in messages %}\n  {% if m.role == 'user' %}\n[INST] {{ m.content | tojson }} [/INST]\n"
    "  {% else %}{{ m['content'] }}{{ eos_token }}{% endif %}\n{% endfor %}{% if add_generation_prompt %}>>{% endif %}",
    "{%- for m in messages -%}{%- if loop.index0 == 2 -%}{%- break -%}{%- endif -%}{{ m.role ~ ': ' ~ m.content }}\n"
    "{% endfor %}",
    "{% set ns = namespace(found=false) %}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% set ns.found = true %}{{ m.reasoning_content }}|{{ m.thinking }}{% endif %}{% endfor %}"
    "{{ ns.found }}{{ undefined_thing }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{{ dict(a=1) | tojson(indent=2) }}{{ messages[0].content.split() | join('-') }}{{ 'x' * 3 + 'y' }}{{ 7 % 4 }}"
    "{{ '%s!' % 'a' }}{{ 'ab' | upper | center(9) }}{{ [1, 2] + [3] }}{{ 2 ** 5 }}",
    "{{ tools is none }}{{ documents is none }}{{ messages | length }}{{ messages[-1].content[0].text }}",
    "{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(messages[1]['role']) }}{{ strftime_now('%Y') }}",
]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
def test_texts_equal_transformers(copy: Copy, template: str, prompt: bool) -> None:
    family = copy("llama", {"add_bos_token": True, "chat_template": template})
    mine, theirs = load_tokenizer(family.folder), family.theirs()
    assert mine is not None
    expected = theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=prompt)
    assert mine.chat(CHAT, add_generation_prompt=prompt) == expected
    again = mine.encode(mine.chat(CHAT, add_generation_prompt=prompt), special=False).ids
    assert again == theirs.apply_chat_template(CHAT, add_generation_prompt=prompt, return_dict=False)


def test_template_is_saved(copy: Copy, tmp_path: Any) -> None:
    mine = load_tokenizer(copy("llama", {"chat_template": TEMPLATES[0]}).folder)
    assert mine is not None
    mine.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert again is not None
    assert again.chat(CHAT) == mine.chat(CHAT)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% if %}", "the chat template is broken in line 1"),
        ("{% for m in messages %}", "the chat template is broken in line 1"),
        ("{{ 'x' * 10**9 }}", "builds a value of more than"),
        ("{{ 10**99999999 }}", "builds a value of more than"),
        ("{{ '%999999999d' % 1 }}", "builds a value of more than"),
        ("{{ 'x'.center(10**9) }}", "asks for more than"),
        ("{{ 'x' | center(10**9) }}", "asks for more than"),
        ("{{ '{:>999999999}'.format(1) }}", "asks for more than"),
        (
            "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "builds a text",
        ),
        (
            "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
            "builds a value",
        ),
        ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "writes more than 4000000 characters"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "takes longer than 0.5 seconds",
        ),
        (
            "{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% if j %}{% endif %}{% endfor %}{% endfor %}",
            "takes longer",
        ),
    ],
)
def test_broken_or_endless_templates(template: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "SECONDS", 0.5)
    with pytest.raises(CheckpointError, match=message):
        render(template, CHAT, {})


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('only one user') }}", "the chat template refuses this chat: only one user"),
        ("{{ messages[9].content }}", "has no element 9"),
        ("{{ messages.append(1) }}", "refuses this chat"),
        ("{{ ''.__class__.__mro__ }}", "refuses this chat"),
        ("{% set ns = namespace(__x=1) %}", "can't hold the name '__x'"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.missing.more }}", "has no attribute 'missing'"),
        ("{{ range(10**7) }}", "refuses this chat|asks for more"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refuses this chat"),
    ],
)
def test_refused_chats(template: str, message: str) -> None:
    with pytest.raises((InputError, CheckpointError), match=message) as caught:
        render(template, CHAT, {})
    assert "\n" not in str(caught.value)


def test_wrong_messages(copy: Copy) -> None:
    for messages in ([], "hi", {"role": "user"}):
        with pytest.raises(InputError, match="a chat is a list of at least one message"):
            render("x", messages, {})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="message 0 of the chat is 'hi'"):
        render("x", ["hi"], {})  # type: ignore[list-item]
    bare = load_tokenizer(copy("bert").folder)
    assert bare is not None
    with pytest.raises(InputError, match="this tokenizer has no chat template"):
        bare.chat(CHAT)


def test_only_plain_values_reach_a_template() -> None:
    class Rich:
        def __str__(self) -> str:
            return "secret"

    found = render("{{ messages | tojson }}", [{"role": "user", "content": Rich(), "more": (1, 2.5, None, True)}], {})
    assert json.loads(found) == [{"role": "user", "content": "<Rich>", "more": [1, 2.5, None, True]}]
    assert not re.search("secret", found)
