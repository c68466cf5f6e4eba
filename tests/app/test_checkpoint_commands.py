"""`cutaway info`, `convert` and `get` as a person runs them, on tiny models that are made here."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub.constants as constants
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import cutaway
from bench.parity import make
from cutaway.checkpoint_info import licence
from cutaway.checkpoints.weights import Weights
from cutaway.cli.display.checkpoint import joined
from cutaway.info.summary import size_rows
from cutaway.loading import load
from cutaway.model import Model
from cutaway.models.config import TransformerConfig
from cutaway.models.usage import Usage
from cutaway.text.train import train_tokenizer
from tests.support import commands, hf_models
from tests.support.families import FAMILIES, shrunk
from tests.support.hub_server import serving
from tests.support.small_models import TEXTS

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()


Run = Callable[..., commands.Done]


@pytest.fixture(autouse=True)
def _narrow_and_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As transformers saves it, with a tokenizer, a licence, a key that nobody knows and a tensor that nobody needs."""
    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    config = hf.GPT2Config(
        vocab_size=300, n_embd=24, n_layer=3, n_head=4, n_positions=13, bos_token_id=2, eos_token_id=3
    )
    hf.GPT2LMHeadModel(config).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors") | {"transformer.h.0.attn.bias": torch.ones(1, 1, 13, 13)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    keys = json.loads((folder / "config.json").read_text()) | {"frobnicate": 3}
    (folder / "config.json").write_text(json.dumps(keys))
    train_tokenizer(TEXTS, "bpe", 280).save(folder)
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# A tiny GPT-2\n")
    return folder


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes a tensor from a file fails."""

    def taken(*arguments: object) -> None:
        raise AssertionError(f"{arguments} was read")

    monkeypatch.setattr(Weights, "tensor", taken)
    monkeypatch.setattr(torch, "from_file", taken)


@pytest.mark.usefixtures("no_weights")
def test_info_of_a_folder_of_hugging_face(run: Run, gpt2: Path) -> None:
    done = run("info", gpt2)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    rows = {line[:14].strip(): line[14:].strip() for line in lines if line[:14].strip()}
    assert rows["format"] == "Hugging Face"
    assert rows["family"] == "GPT-2"
    assert rows["architecture"] == "GPT2LMHeadModel"
    assert rows["halves"] == "decoder-only"
    assert rows["head"] == "language model"
    assert rows["blocks"] == "3"
    assert rows["width"] == "24"
    assert rows["heads"] == "4, each 6 wide"
    assert "feed-forward  96 wide, gelu_tanh" in done.out
    assert rows["vocabulary"] == "300 tokens"
    assert rows["context"] == "13 positions"
    assert rows["tokenizer"] == "byte-level BPE, 280 tokens"
    assert "pad <pad> 0" in done.out
    assert rows["writing"] == "begins with token 2, ends with 3"
    assert rows["licence"] == "apache-2.0"
    assert rows["unknown keys"] == "frobnicate"
    assert rows["unused"] == "transformer.h.0.attn.bias"
    assert any(line.split()[:1] == ["feed-forward"] for line in lines)


@pytest.mark.usefixtures("no_weights")
def test_every_tensor_with_both_names(run: Run, gpt2: Path) -> None:
    theirs = load_file(gpt2 / "model.safetensors")
    listed = {tensor["theirs"]: tensor for tensor in run("info", gpt2, "--tensors", "--json").json["tensors"]}
    assert set(listed) == set(theirs)
    for name, tensor in theirs.items():
        assert listed[name]["shape"] == list(tensor.shape)
        assert listed[name]["dtype"] == "float32"
    assert listed["transformer.h.0.attn.bias"]["ours"] == []
    config = run("info", gpt2, "--json").json
    assert config["n_tensors"] == len(theirs)
    assert "tensors" not in config
    text = run("info", gpt2, "--tensors").out
    assert max(map(len, text.splitlines())) <= 80
    assert "  → decoder.blocks.1.self_attention.{q,k,v}.weight" in text
    assert "[24, 72] float32" in text


def test_the_names_are_those_of_the_network(run: Run, gpt2: Path) -> None:
    listed = run("info", gpt2, "--tensors", "--json").json["tensors"]
    names = [name for tensor in listed for name in tensor["ours"]]
    assert sorted(names) == sorted(name for name, _ in load(gpt2).network.named_parameters())


@pytest.mark.parametrize("name", FAMILIES)
def test_info_of_our_own_format(name: str, run: Run, tmp_path: Path) -> None:
    network = cutaway.build(shrunk(name))
    Model(network, usage=Usage(labels=("no", "yes"))).save(tmp_path / "model")
    found = run("info", tmp_path / "model", "--json", "--tensors").json
    assert found["format"] == "cutaway"
    assert found["parameters"] == sum(weight.numel() for weight in network.parameters())
    assert sum(found["parameters_by_part"].values()) == found["parameters"]
    assert {tensor["theirs"] for tensor in found["tensors"]} >= {key for key, _ in network.named_parameters()}
    text = run("info", tmp_path / "model").out
    assert max(map(len, text.splitlines())) <= 80 or len(str(tmp_path)) > 60
    assert "no, yes" in text
    for half in ("encoder", "decoder"):
        stack = getattr(network.config, half)
        assert (half in found["sizes"]) == (stack is not None)
        if stack is not None:
            sizes = found["sizes"][half]
            assert (sizes["d_model"], sizes["vocabulary"]) == (stack.d_model, stack.vocabulary)
            assert sizes.get("d_ff") == getattr(stack, "d_ff", None)
            assert sizes.get("d_hidden") == getattr(stack, "d_hidden", None)
    titles = [line.split()[0] for line in text.splitlines() if line and line[0] != " "]
    recurrent = network.config.kind == "recurrent"
    wanted = ["layers", "width", "hidden"] if recurrent else ["blocks", "width", "heads", "feed-forward"]
    assert set(titles) >= {*wanted, "context"}


def test_info_says_the_sizes() -> None:
    t5 = size_rows(cutaway.preset("t5-small"))
    assert (t5["blocks"], t5["width"], t5["heads"]) == ("6 in each half", "512", "8, each 64 wide")
    assert t5["context"] == "any length, by relative positions"
    halves = size_rows(shrunk("transformer-tiny"))
    assert (halves["blocks"], halves["width"]) == ("encoder 3\ndecoder 2", "24")
    llama = size_rows(shrunk("llama-15m"))
    assert (llama["heads"], llama["feed-forward"]) == ("4, each 6 wide; 2 for keys and values", "20 wide, gated, silu")
    assert (llama["vocabulary"], llama["context"]) == ("19 tokens", "13 positions")
    assert "window" not in llama
    narrow = shrunk("llama-15m")
    assert isinstance(narrow, TransformerConfig)
    assert narrow.decoder is not None
    window = replace(narrow, decoder=replace(narrow.decoder, window=1000))
    assert size_rows(window)["window"] == "1,000 tokens"
    some = replace(narrow, decoder=replace(narrow.decoder, window=1000, window_blocks=(1,)))
    assert size_rows(some)["window"] == "1,000 tokens, in 1 of 2 blocks"
    gru = size_rows(shrunk("bahdanau-gru"))
    assert gru["layers"] == "encoder 1 of GRU, read both ways\ndecoder 1 of GRU"
    assert (gru["hidden"], gru["context"]) == ("encoder 10\ndecoder 12", "any length")
    vit = size_rows(shrunk("vit-tiny"))
    assert (vit["image"], vit["context"]) == ("12 × 12 in patches of 4 × 4, 3 channels", "10 positions")
    assert "vocabulary" not in vit


def test_our_own_format_remembers_the_family(run: Run, gpt2: Path, tmp_path: Path) -> None:
    run("convert", gpt2, tmp_path / "model", "--to", "cutaway")
    found = run("info", tmp_path / "model", "--json").json
    assert (found["family"], found["architecture"]) == ("GPT-2", "GPT2LMHeadModel")
    assert found["tokenizer"]["kind"] == "byte-level BPE"


def test_our_own_format_that_does_not_fit(run: Run, tmp_path: Path) -> None:
    folder = Model(cutaway.build(shrunk("gpt2"))).save(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("decoder.final_norm.bias")
    save_file(tensors, folder / "model.safetensors")
    done = run("info", folder)
    assert done.code == 2
    assert "decoder.final_norm.bias is missing" in done.err


def llama2c(file: Path) -> Path:
    D, F, L, H, G, V, C = 24, 20, 2, 4, 2, 19, 13
    kv = D // H * G
    n = V * D + 2 * L * D + D + L * (2 * D * D + 2 * kv * D) + 3 * L * F * D + 2 * C * (D // H // 2)
    file.write_bytes(struct.pack("<7i", D, F, L, H, G, V, C) + torch.randn(n).numpy().tobytes())
    return file


@pytest.mark.usefixtures("no_weights")
def test_info_of_a_llama2c_file(run: Run, tmp_path: Path) -> None:
    found = run("info", llama2c(tmp_path / "stories.bin"), "--json", "--tensors").json
    assert (found["format"], found["family"], found["halves"]) == ("llama2.c", "Llama", "decoder-only")
    assert (found["vocabulary"], found["context"]) == ({"decoder": 19}, {"decoder": 13})
    assert found["tensors"][-2] == {
        "theirs": None, "ours": ["decoder.embedding.tokens.weight"], "shape": [19, 24], "dtype": "float32"
    }  # fmt: skip
    assert "decoder.blocks.1.feedforward.gate.weight" in run("info", tmp_path / "stories.bin", "--tensors").out


def test_info_names_the_labels(run: Run, tmp_path: Path) -> None:
    sizes = {
        "vocab_size": 37,
        "hidden_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 20,
    }
    labels = {0: "[bold]sad", 1: "glad", 2: "neither"}
    config = hf.BertConfig(**sizes, max_position_embeddings=13, id2label=labels)
    hf.BertForSequenceClassification(config).save_pretrained(tmp_path)
    done = run("info", tmp_path)
    assert "[bold]sad, glad, neither" in done.out, "text of a file is not markup"
    assert run("info", tmp_path, "--json").json["usage"]["labels"] == ["[bold]sad", "glad", "neither"]


@pytest.mark.parametrize(
    ("readme", "text", "expected"),
    [
        ("---\nlicense: mit\n---\n", "", "mit"),
        ("\ufeff---\r\nlicense: 'mit'  # good\r\n---\r\n", "", "mit"),
        ("---\nlicense:\n- mit\n- apache-2.0\ntags: x\n---\n", "", "mit, apache-2.0"),
        ("---\nlicense: [mit, gpl-3.0]\n---\n", "", "mit, gpl-3.0"),
        ("---\nlicense: other\nlicense_name: llama3.2\n---\n", "", "llama3.2"),
        ("---\nlicense: other\n---\n", "", "other"),
        ("---\ntags:\n  license: no\n---\nlicense: no\n", "\n\n  Apache License\nVersion 2.0", "Apache License"),
        ("# no front matter\nlicense: no\n", "", None),
        ("---\nlicense: never closed\n", "", None),
        ("---\nlicense: \x1b[31mred\n---\n", "", "31mred"),  # no control characters
        ("", "", None),
    ],
)
def test_licence(readme: str, text: str, expected: str | None, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(readme, encoding="utf-8")
    (tmp_path / "LICENSE").write_text(text)
    assert licence(tmp_path) == expected


def test_names_that_differ_in_one_step_are_joined() -> None:
    assert joined(("a.q.w", "a.k.w", "a.v.w")) == "a.{q,k,v}.w"
    assert joined(("a.q.w", "b.k.w")) == "a.q.w, b.k.w"
    assert joined(("a.q", "a.q.w")) == "a.q, a.q.w"
    assert joined(("a.w",)) == "a.w"
    assert joined(()) == ""


def test_there_and_back_is_exact(run: Run, gpt2: Path, tmp_path: Path) -> None:
    there = run("convert", gpt2, tmp_path / "ours", "--to", "cutaway")
    assert there.code == 0
    assert "cutaway's own format" in there.out
    back = run("convert", tmp_path / "ours", tmp_path / "theirs", "--to", "huggingface", "--json").json
    assert (back["format"], back["family"], back["dtypes"]) == ("huggingface", "GPT-2", ["float32"])
    assert back["files"]["model.safetensors"] == (tmp_path / "theirs" / "model.safetensors").stat().st_size
    assert back["bytes"] == sum(back["files"].values())
    assert "tokenizer.json" in back["files"]
    old, new = load_file(gpt2 / "model.safetensors"), load_file(tmp_path / "theirs" / "model.safetensors")
    assert back["n_tensors"] == len(new)
    assert set(old) - set(new) == {"transformer.h.0.attn.bias"}
    assert all(torch.equal(old[name], tensor) for name, tensor in new.items())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_another_dtype(dtype: str, run: Run, gpt2: Path, tmp_path: Path) -> None:
    done = run("convert", gpt2, tmp_path / "out", "--to", "huggingface", "--dtype", dtype, "--json").json
    assert done["dtypes"] == [dtype]
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == dtype


def test_llama2c_becomes_hugging_face(run: Run, tmp_path: Path) -> None:
    done = run("convert", llama2c(tmp_path / "stories.bin"), tmp_path / "out", "--to", "huggingface", "--json").json
    assert (done["family"], done["architecture"]) == ("Llama", "LlamaForCausalLM")


PICKLED = ["MarianMT: translation", "T5: v1.0", "BERT: masked LM", "DistilBERT: classifier", "GPT-2: language model",
           "Llama: tied", "ViT: classifier"]  # fmt: skip


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("name", PICKLED)
def test_a_pickle_becomes_the_model_it_was(name: str, run: Run, tmp_path: Path) -> None:
    theirs = make(hf_models.case(name))
    theirs.save_pretrained(tmp_path / "good")
    theirs.config.save_pretrained(tmp_path / "old")
    stored, state = load_file(tmp_path / "good" / "model.safetensors"), theirs.state_dict()
    state = state if set(stored) <= set(state) else stored  # ViT's modules have other names than its files
    torch.save(state, tmp_path / "old" / "pytorch_model.bin")
    refused = run("info", tmp_path / "old")
    assert refused.code == 2
    assert f"cutaway convert --from-pickle {tmp_path / 'old'} NEW-FOLDER" in refused.err
    done = run("convert", "--from-pickle", tmp_path / "old", tmp_path / "new")
    assert done.code == 0, done.err
    assert "torch's restricted unpickler (weights_only=True), in a process of its own" in done.err
    assert len(done.err.splitlines()) == 1
    expected, found = (dict(load(tmp_path / place).network.named_parameters()) for place in ("good", "new"))
    assert set(found) == set(expected)
    assert all(torch.equal(found[key], weight) for key, weight in expected.items())


@pytest.mark.usefixtures("forked")
def test_a_pickle_to_our_own_format(run: Run, gpt2: Path, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_bytes((gpt2 / "config.json").read_bytes())
    torch.save(load_file(gpt2 / "model.safetensors"), tmp_path / "old" / "pytorch_model.bin")
    arguments = ("--to", "cutaway", "--dtype", "bfloat16", "--json")
    done = run("convert", "--from-pickle", tmp_path / "old", tmp_path / "new", *arguments)
    assert (done.json["format"], done.json["dtypes"]) == ("cutaway", ["bfloat16"])
    assert {path.name for path in tmp_path.iterdir()} == {"old", "new"}, "nothing is left beside it"


@pytest.mark.usefixtures("forked")
def test_a_pickle_that_is_no_model_of_ours_is_not_written(run: Run, gpt2: Path, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_bytes((gpt2 / "config.json").read_bytes())
    torch.save({f"w{i}": torch.ones(2) for i in range(9)}, tmp_path / "old" / "pytorch_model.bin")
    done = run("convert", "--from-pickle", tmp_path / "old", tmp_path / "new")
    assert done.code == 2
    assert f"Error: {tmp_path / 'old'}: the weights do not fit config.json: " in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("to", [(), ("--to", "cutaway")])
def test_a_pickle_that_is_code_ends_in_a_sentence(to: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text("{}")
    torch.save({"w": Evil(tmp_path / "marker")}, tmp_path / "old" / "pytorch_model.bin")
    done = run("convert", "--from-pickle", tmp_path / "old", tmp_path / "new", *to)
    assert (done.code, done.out) == (2, "")
    _, error = done.err.splitlines()
    assert error.startswith("Error: ")
    assert "system, which is code and not a tensor; it was not run" in error
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "no/such"], "there is no folder 'no/such', and no/such is not (or not wholly) in the cache"),
        (["info", "../x"], "names on the hub look like owner/name"),
        (["info", "{empty}"], "is not a model: it has no config.json"),
        (["info", "{text}"], "is not a llama2.c model"),
        (["get", "no/such"], "cutaway get no/such"),
        (["get", "/etc"], "names on the hub look like owner/name"),
        (["get", "no/such", "--revision", "../.."], "'../..' can't be a revision"),
        (["convert", "{model}", "{out}"], "--to is missing: name a format, huggingface, cutaway or ctranslate2"),
        (["convert", "{model}", "{out}", "--to", "onnx"], "Invalid value for '--to'"),
        (["convert", "{model}", "{out}", "--to", "cutaway", "--dtype", "int4"], "Invalid value for '--dtype'"),
        (["convert", "{model}", "{out}", "--to", "cutaway", "--dtype", "int8"], "--dtype int8 belongs to --to ct"),
        (["convert", "{model}", "{diary}", "--to", "cutaway"], "holds something other than a saved model"),
        (["convert", "{model}", "{text}/out", "--to", "cutaway"], "can't write"),
        (["convert", "{rnn}", "{out}", "--to", "huggingface"], "Hugging Face has no recurrent encoder-decoders"),
        (["convert", "{model}", "{out}", "--from-pickle"], "so leave out --from-pickle"),
        (["convert", "no/such", "{out}", "--to", "cutaway"], "there is no folder 'no/such'"),
        (["convert", "{model}"], "Missing argument 'OUT'"),
    ],
)
def test_mistakes(arguments: list[str], message: str, run: Run, tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("model", "out", "diary", "text", "rnn", "empty")}
    Model(cutaway.build(shrunk("gpt2"))).save(places["model"])
    Model(cutaway.build(shrunk("rnn-seq2seq"))).save(places["rnn"])
    places["text"].write_text("not a model, but more than a header's bytes")
    for name in ("diary", "empty"):
        places[name].mkdir()
    (places["diary"] / "monday.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    done = run(*(argument.format(**places) for argument in arguments))
    assert done.code == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1
    assert done.out == ""
    assert sorted(tmp_path.rglob("*")) == before


def person(*arguments: object, **environment: str) -> commands.Done:
    return commands.run([*map(str, arguments)], environment={"HF_HUB_OFFLINE": "0"} | environment)


def test_from_the_hub(gpt2: Path, tmp_path: Path) -> None:
    """Everything by name, with processes of their own: first online, then without a hub."""
    files = {path.name: path.read_bytes() for path in gpt2.iterdir()}
    weights = load_file(gpt2 / "model.safetensors")
    torch.save(weights, tmp_path / "pytorch_model.bin")
    pickled = {"config.json": files["config.json"], "pytorch_model.bin": (tmp_path / "pytorch_model.bin").read_bytes()}
    evil = {"pytorch_model.bin": b"pickle", "modeling.py": b"code"}
    cache = {"HF_HUB_CACHE": str(tmp_path / "cache"), "NO_PROXY": "127.0.0.1"}
    with serving({"owner/tiny": files | evil, "owner/old": pickled}) as hub:
        online = cache | {"HF_ENDPOINT": hub.endpoint}
        got = person("get", "owner/tiny", **online)
        assert got.code == 0, got.err
        folder, what = got.out.splitlines()
        assert {path.name for path in Path(folder).iterdir()} == set(files)
        assert what.startswith("GPT-2 (GPT2LMHeadModel), decoder-only, ")
        assert got.err == ""
        assert not any(path.endswith((".bin", ".py")) for path in hub.asked)
        refused = person("get", "owner/old", **online)
        assert refused.code == 2
        assert "cutaway convert --from-pickle owner/old NEW-FOLDER" in refused.err
        converted = person("convert", "--from-pickle", "owner/old", tmp_path / "new", **online)
        assert converted.code == 0, converted.err
        assert set(load_file(tmp_path / "new" / "model.safetensors")) == set(weights)
        absent = person("get", "owner/absent", **online)
        assert (absent.code, len(absent.err.splitlines())) == (2, 1)
    gone = cache | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    info = person("info", "owner/tiny", "--json", **gone)
    assert json.loads(info.out)["family"] == "GPT-2"
    assert info.err.endswith("; using the copy of owner/tiny in the cache\n")
    assert len(info.err.splitlines()) == 1
    lost = person("get", "owner/absent", **gone)
    assert (lost.code, len(lost.err.splitlines())) == (2, 1)
    assert "the hub can't be reached" in lost.err


@pytest.mark.parametrize("command", ["get", "info", "convert"])
def test_help_does_not_load_torch(command: str) -> None:
    code = (
        f"import sys; sys.argv = ['cutaway', '{command}', '--help']\n"
        "from cutaway.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: sys.exit('torch' in sys.modules or 'huggingface_hub' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode == 0
    assert command in done.stdout
