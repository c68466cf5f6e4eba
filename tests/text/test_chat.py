"""Chat templates: transformers' text, or one sentence."""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import jinja2
import pytest

from cutaway import sandbox
from cutaway.errors import CheckpointError, InputError
from cutaway.text.chat import render
from cutaway.text.files import load_tokenizer
from tests.support.chat_templates import STYLES
from tests.support.hostile_templates import SAMPLE
from tests.support.tokenizer_families import Family

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


TURNS = [
    {"role": "user", "content": " Où est le chat ? \n"},
    {"role": "assistant", "content": '<think>\nhm\n</think>\n\nSur le "tapis" & là. 👍'},
    {"role": "user", "content": "Merci\r\n!"},
]
CALLS = [
    *TURNS,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "a1", "function": {"name": "look", "arguments": {"where": "là", "n": [1, 2.5, None]}}}],
    },
    {"role": "tool", "content": "<found>"},
]
CONVERSATIONS = {
    "one turn": TURNS[:1],
    "three turns": TURNS,
    "a system prompt": [{"role": "system", "content": "Be <brief>."}, *TURNS],
    "a tool's call": CALLS,
    "two of one role": [TURNS[0], TURNS[0]],
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("prompt", [True, False])
def test_styles_of_published_templates_equal_transformers(copy: Copy, style: str, prompt: bool) -> None:
    family = copy("llama", {"chat_template": STYLES[style]})
    mine, theirs = load_tokenizer(family.folder), family.theirs()
    assert mine is not None
    equal = 0
    for chat in CONVERSATIONS.values():
        try:
            expected = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompt)
        except jinja2.TemplateError as error:
            with pytest.raises(InputError, match=re.escape(str(error))):
                mine.chat(chat, add_generation_prompt=prompt)
            continue
        assert mine.chat(chat, add_generation_prompt=prompt) == expected
        equal += 1
    assert equal >= 3  # those that insist on turns refuse the last, or the last two


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
        ("{{ 'x' * 5_000_000 }}", "the chat template writes more than 4,000,000 characters; put one that works into"),
        ("x" * 2_000_000, "the chat template has 2,000,000 characters, more than 1,000,000; put one"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "takes longer than 0.5 sec"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself without end"),
        (f"{{{{ {'(' * 1000}1{')' * 1000} }}}}", "is nested too deeply"),
        ("{{ " + "9" * 5000 + " }}", "can't be compiled"),
    ],
)
def test_broken_or_endless_templates(template: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 0.5)
    with pytest.raises(CheckpointError, match=message):
        render(template, CHAT, {})


@pytest.mark.parametrize("name", SAMPLE)
def test_hostile_templates_fail_in_time_and_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises((CheckpointError, InputError)) as caught:
        render(SAMPLE[name], CHAT, {})
    assert re.match("the chat template (takes|needs|is|calls) ", str(caught.value))
    assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 5


def test_a_template_that_fails_leaves_the_next_one_whole() -> None:
    with pytest.raises(CheckpointError, match="needs more than 384 MB of memory"):
        render("{{ 'x' * 10**9 }}", CHAT, {})
    assert render("{{ messages | length }}", CHAT, {}) == "4"


def test_chats_too_large_or_too_deep_for_a_template() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    for content in ("x" * 25_000_000, deep):
        with pytest.raises(InputError, match="this chat can't be given to the chat template"):
            render("x", [{"role": "user", "content": content}], {})


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
        ("{{ range(10**7) }}", "refuses this chat: Range too big"),
        ("{{ lipsum() }}", "'lipsum' is undefined"),
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
