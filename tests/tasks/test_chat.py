"""chat: turns, the template, where an answer ends, and what happens when it all no longer fits."""

import pytest

from cutaway.errors import CheckpointError, InputError
from tests.support import small_models as small


def test_a_conversation_is_remembered() -> None:
    model = small.chatty()
    engine = small.scripted(model, "The cat<|end|>and more", "A dog<|end|>")
    chat = model.chat(system="Be brief")
    assert "".join(chat.say("Who sat?")) == "The cat"
    assert "".join(chat.say("Who ate?")) == "A dog"
    assert [message["content"] for message in chat.history] == ["Who sat?", "The cat", "Who ate?", "A dog"]
    seen = model.tokenizer.decode(engine.asked[-1][0], skip_special=False)
    assert (
        seen == "<system>Be brief<|end|><user>Who sat?<|end|><assistant>The cat<|end|><user>Who ate?<|end|><assistant>"
    )
    chat.reset()
    assert (chat.history, chat.system) == ([], "Be brief")
    chat.reset(system="Be long")
    assert chat.system == "Be long"


def test_an_answer_ends_where_the_template_ends_a_turn() -> None:
    model = small.chatty()
    engine = small.scripted(model, "x")
    "".join(model.chat().say("Hi"))
    assert engine.asked[-1][1].stop_ids == (model.tokenizer.id_of("<|end|>"),)
    model.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    "".join(model.chat().say("Hi"))
    assert engine.asked[-1][1].stop_ids == ()


def test_a_template_that_fails_is_told_at_once() -> None:
    model = small.chatty()
    model.tokenizer.chat_template = "{{ 'x' * 10**10 }}"
    with pytest.raises(CheckpointError, match="the chat template needs more than 384 MB of memory; put one that works"):
        model.chat()


def test_a_real_model_answers_in_pieces() -> None:
    chat = small.chatty().chat(max_new_tokens=12)
    pieces = list(chat.say("The cat"))
    assert len(pieces) > 1
    assert chat.history[-1] == {"role": "assistant", "content": "".join(pieces)}


def test_what_is_left_half_way_is_remembered_half() -> None:
    model = small.chatty()
    small.scripted(model, "one two three four five six")
    chat = model.chat()
    answer = chat.say("Count")
    first = next(answer)
    answer.close()
    assert chat.history == [{"role": "user", "content": "Count"}, {"role": "assistant", "content": first}]


def test_the_oldest_turns_are_left_out_and_it_says_so() -> None:
    model = small.chatty(positions=120)
    engine = small.scripted(model, "The cat sat on the mat.")
    told: list[str] = []
    chat = model.chat(system="Be brief", tell=told.append)
    for number in range(12):
        "".join(chat.say(f"And then, number {number}?"))
        assert len(engine.asked[-1][0]) <= 120 - 120 // 4
    assert chat.forgotten > 0
    assert chat.forgotten % 2 == 0
    assert len(chat.history) == 24
    assert "no longer fits the 120 tokens that llama-15m sees: the oldest" in told[0]
    seen = model.tokenizer.decode(engine.asked[-1][0])
    assert "Be brief" in seen
    assert "number 0?" not in seen
    assert "number 11?" in seen
    chat = model.chat()
    chat.history = [{"role": role, "content": "And then?" * 9} for role in ("user", "assistant")]
    with pytest.warns(UserWarning, match="messages are left out"):
        chat.say("Hi")


def test_a_message_that_never_fits_changes_nothing() -> None:
    chat = small.chatty(positions=40).chat()
    with pytest.raises(InputError, match=r"the message, with the system prompt, has \d+ tokens, and .* at most 40"):
        chat.say("and then " * 40)
    assert (chat.history, chat.forgotten) == ([], 0)


def test_a_turn_that_fails_can_be_tried_again() -> None:
    model = small.chatty()
    engine = small.scripted(model, "yes")

    def fails(*_: object) -> object:
        raise InputError("no")

    stream, engine.generate_stream = engine.generate_stream, fails  # type: ignore[method-assign]
    chat = model.chat()
    with pytest.raises(InputError, match="no"):
        "".join(chat.say("Hi"))
    engine.generate_stream = stream  # type: ignore[method-assign]
    assert chat.history == []
    assert "".join(chat.say("Hi")) == "yes"


def test_models_that_can_t_chat() -> None:
    with pytest.raises(InputError, match="gpt2 has no chat template; chat needs a decoder-only language model with"):
        small.model("gpt2").chat()
    with pytest.raises(InputError, match="transformer-tiny is an encoder-decoder .*; chat needs a decoder-only"):
        small.model("transformer-tiny").chat()
    chat = small.chatty().chat()
    with pytest.raises(InputError, match="expected a text"):
        chat.say(3)
