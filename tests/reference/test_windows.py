"""Sliding windows: texts that are several windows long, read and written as transformers does."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import cutaway
from bench.parity import LIMIT
from cutaway.engines.ctranslate2_spec import unsupported
from cutaway.errors import CheckpointError, ConfigError
from cutaway.generation import Generation, Prompt
from cutaway.model import Model
from cutaway.models.config import StackConfig, TransformerConfig
from cutaway.parts.cache import Cache
from tests.support.families import shrunk

WINDOW, LENGTH = 5, 23
SIZES: dict[str, Any] = {
    "vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 20, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1,
    "sliding_window": WINDOW,
}  # fmt: skip
MODELS: dict[str, Callable[[], Any]] = {
    "Mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**SIZES)),
    "Qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SIZES, use_sliding_window=True, max_window_layers=1)),
}


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Model]:
    """The same weights there and here, with noise on all of them: nothing is decided by float noise."""
    torch.manual_seed(0)
    theirs = MODELS[request.param]().eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight += 0.35 * torch.randn_like(weight)
    folder = tmp_path_factory.mktemp("window")
    theirs.save_pretrained(folder)
    return theirs, cutaway.load(folder)


def texts(n_rows: int = 3) -> Tensor:
    return torch.randint(3, 37, (n_rows, LENGTH), generator=torch.Generator().manual_seed(1))


def close(ours: Tensor, theirs: Tensor) -> None:
    """The bound of bench/parity.py, on logits of some tens."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=LIMIT)


def test_logits_of_a_text_of_several_windows(pair: tuple[Any, Model]) -> None:
    theirs, ours = pair
    with torch.inference_mode():
        close(ours.network(texts()), theirs(texts()).logits)
        close(ours.engine("native").read(texts()), theirs(texts()).logits)


def test_the_window_changes_what_is_said(pair: tuple[Any, Model]) -> None:
    """Or nothing here would be tested."""
    _, ours = pair
    assert isinstance(ours.config, TransformerConfig)
    assert ours.config.decoder is not None
    whole = cutaway.Transformer(
        replace(ours.config, decoder=replace(ours.config.decoder, window=None, window_blocks=()))
    )
    whole.load_state_dict(ours.network.state_dict())
    with torch.inference_mode():
        a, b = ours.network(texts()), whole.eval()(texts())
    assert torch.equal(a[:, :WINDOW], b[:, :WINDOW])
    assert (a[:, WINDOW:] - b[:, WINDOW:]).abs().amax(dim=(0, 2)).min() > 0.01


@pytest.mark.parametrize("steps", [(LENGTH,), (1,) * LENGTH, (7, 1, 1, 9, 5)], ids=str)
def test_logits_step_by_step(steps: tuple[int, ...], pair: tuple[Any, Model]) -> None:
    theirs, ours = pair
    cache, found = Cache(), []
    with torch.inference_mode():
        for part in texts().split(steps, dim=1):
            found.append(ours.network.decode(part, cache=cache))
        close(torch.cat(found, dim=1), theirs(texts()).logits)


@pytest.mark.parametrize("steps", [(LENGTH,), (2 * WINDOW + 2, *(1,) * (LENGTH - 2 * WINDOW - 2))], ids=["one", "many"])
def test_left_padding(steps: tuple[int, ...], pair: tuple[Any, Model]) -> None:
    """The longest is more than two windows; the first step reaches a real token of each row."""
    theirs, ours = pair
    real = torch.arange(LENGTH) >= torch.tensor([0, 3, 2 * WINDOW + 1])[:, None]
    places = (real.long().cumsum(1) - 1).clamp(min=0)
    given = texts().masked_fill(~real, 0)
    cache, found = Cache(), []
    with torch.inference_mode():
        expected = theirs(given, attention_mask=real.long(), position_ids=places).logits
        for part, mask in zip(given.split(steps, dim=1), real.split(steps, dim=1), strict=True):
            found.append(ours.network.decode(part, cache=cache, mask=mask))
    close(torch.cat(found, dim=1)[real], expected[real])


@pytest.mark.parametrize("engine", ["float32", "int8"])
def test_texts_that_are_written(engine: str, pair: tuple[Any, Model]) -> None:
    """Prompts of unlike lengths in one batch, left-padded there; int8 is compared with itself, alone and in a batch."""
    theirs, ours = pair
    lengths = (LENGTH, 2, WINDOW, 2 * WINDOW + 1)
    rows = [row[:n].tolist() for row, n in zip(texts(4), lengths, strict=True)]
    prompts = [Prompt(tuple(row)) for row in rows]
    generation = Generation(max_new_tokens=3 * WINDOW)
    made = ours.engine("native", engine)
    written = [text.ids for [text] in made.write(prompts, generation)]
    if engine == "int8":
        alone = [text.ids for prompt in prompts for [text] in made.write([prompt], generation)]
        assert written == alone
        return
    tokens = torch.tensor([[0] * (LENGTH - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (LENGTH - len(row)) + [1] * len(row) for row in rows])
    found = theirs.generate(tokens, attention_mask=mask, max_new_tokens=3 * WINDOW, do_sample=False)[:, LENGTH:]
    assert [list(ids) for ids in written] == [list(_ended(row)) for row in found.tolist()]


def _ended(row: list[int]) -> list[int]:
    return row[: row.index(1)] if 1 in row else row


def test_a_trace_says_what_is_hidden(pair: tuple[Any, Model]) -> None:
    """Explained by hand in tests/seeing/test_explain.py; here: nothing beyond the window gets a weight."""
    _, ours = pair
    trace = cutaway.trace(ours.network, texts(1))
    weights = trace["decoder.blocks.2.self_attention.weights"][0]
    seen = torch.ones(LENGTH, LENGTH).tril().triu(1 - WINDOW).bool()
    assert bool((weights[:, seen] > 0).all())
    assert bool((weights[:, ~seen] == 0).all())
    close(trace["head.vocabulary.logits"], ours.network(texts(1)))


def test_the_window_is_in_the_config_and_comes_back(pair: tuple[Any, Model], tmp_path: Path) -> None:
    theirs, ours = pair
    stack = ours.config.decoder
    assert isinstance(stack, StackConfig)
    assert stack.window == WINDOW
    windows = [getattr(layer.self_attn, "sliding_window", WINDOW) for layer in theirs.model.layers]
    assert [stack.window_of(i) for i in range(3)] == windows
    ours.save(tmp_path / "native")
    assert cutaway.load(tmp_path / "native").config == ours.config
    made = Model(ours.network)  # without the keys it came with
    made.save(tmp_path / "made", format="huggingface")
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "made").eval()
    assert type(again) is type(theirs)
    with torch.inference_mode():
        assert torch.equal(again(texts()).logits, theirs(texts()).logits)


def test_mistral_has_a_window_where_its_config_says_none(pair: tuple[Any, Model], tmp_path: Path) -> None:
    """A key that is absent is its default, 4096, and null is none: as there."""
    read = {name: cutaway.load(_with(pair[1], tmp_path / name, keys)).config for name, keys in _SILENT.items()}
    found = {name: config.decoder.window for name, config in read.items() if isinstance(config.decoder, StackConfig)}
    is_mistral = type(pair[0]).__name__.startswith("Mistral")
    assert found == {"absent": 4096, "null": None, "unused": WINDOW if is_mistral else None}


_SILENT: dict[str, Callable[[dict[str, Any]], Any]] = {
    "absent": lambda keys: keys.pop("sliding_window"),
    "null": lambda keys: keys.update(sliding_window=None, layer_types=None),
    "unused": lambda keys: keys.update(use_sliding_window=False),
}


def _with(model: Model, folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    model.save(folder, format="huggingface")
    keys = json.loads((folder / "config.json").read_text())
    change(keys)
    (folder / "config.json").write_text(json.dumps(keys))
    return folder


def test_what_can_not_have_a_window() -> None:
    config = shrunk("transformer-tiny")
    assert isinstance(config.encoder, StackConfig)
    with pytest.raises(ConfigError, match="window=3: an encoder looks both ways"):
        replace(config, encoder=replace(config.encoder, window=3))
    with pytest.raises(ConfigError, match=r"window_blocks=\[1\] have no window"):
        replace(config.encoder, window_blocks=(1,))
    with pytest.raises(ConfigError, match=r"window_blocks=\[-1\] must be numbers of blocks"):
        replace(config.encoder, window=3, window_blocks=(-1,))


def test_a_window_that_no_family_has_is_not_saved_as_another_model(tmp_path: Path) -> None:
    config = shrunk("gpt2")
    assert isinstance(config.decoder, StackConfig)
    model = Model(cutaway.build(replace(config, decoder=replace(config.decoder, window=3))))
    with pytest.raises(CheckpointError, match="can't say decoder.window=3"):
        model.save(tmp_path / "model", format="huggingface")
    assert not (tmp_path / "model").exists()


def test_ctranslate2_says_that_it_has_no_such_window(pair: tuple[Any, Model]) -> None:
    assert "sliding window" in (unsupported(pair[1].network) or "")
