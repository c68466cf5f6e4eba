"""Chat templates: a conversation as one text, in the format that its model was trained on.

Templates come with models and are not trusted. They run as transformers runs them (template.py), but in a process of
their own with limits of memory and time: a template can do no worse than fail.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from cutaway.errors import CheckpointError, InputError
from cutaway.sandbox import Sandbox, SandboxError

CHARACTERS = 4_000_000
"""The longest text that a template may write. The longest published templates have 20,000 themselves."""
_LONGEST = 1_000_000
_REASONING = ("reasoning_content", "thinking", "reasoning")
_MEND = "put one that works into the model's folder as chat_template.jinja"
_SANDBOX = Sandbox("cutaway.text.template")


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tokens: Mapping[str, str],
    *,
    add_generation_prompt: bool = True,
) -> str:
    """The text of a conversation; `messages` are {"role": ..., "content": ...}, `tokens` e.g. {"bos_token": "<s>"}.

    A template gets JSON values; any other value is replaced by the name of its type.
    """
    if isinstance(messages, Mapping | str) or not messages:
        raise InputError("a chat is a list of at least one message, each with a role and a content")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InputError(
                f"message {number} of the chat is {message!r}; expected an object with a role and a content"
            )
    if len(template) > _LONGEST:
        raise CheckpointError(f"the chat template has {len(template):,} characters, more than {_LONGEST:,}; {_MEND}")
    try:
        values = {
            "messages": [_with_reasoning(_plain(message)) for message in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **tokens,
        }
        request = {"template": template, "values": values, "now": datetime.now().isoformat()}
        answer = _SANDBOX.ask(request, subject=template)
    except SandboxError as error:
        raise CheckpointError(f"the chat template {error}; {_MEND}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"this chat can't be given to the chat template: {error}") from None
    match answer:
        case {"text": str(text)} if len(text) <= CHARACTERS:
            return text
        case {"text": str(text)}:
            raise CheckpointError(f"the chat template writes more than {CHARACTERS:,} characters; {_MEND}")
        case {"refused": str(reason)}:
            raise InputError(f"the chat template refuses this chat: {reason}")
        case {"failed": str(reason)}:
            raise CheckpointError(f"the chat template {reason}; {_MEND}")
    raise CheckpointError(f"the chat template gives no text; {_MEND}")


def _plain(value: Any) -> Any:
    """The value as JSON types; any other as the name of its type."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else f"<{type(value).__name__}>"


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Reasoning goes by several names; templates read the first or the second."""
    thought = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}
