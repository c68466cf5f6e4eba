"""What the API says is what the network computes."""

import base64
import json
import random
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from cutaway.decoding import filters
from cutaway.decoding.search import write
from cutaway.generation import Generation, Prompt
from cutaway.model import Model
from cutaway.seeing.explain import explain_at
from tests.support.studio_models import SENTENCE, TEXTS
from tests.support.studio_server import Served, sentence

FAMILIES = [*TEXTS, "vit"]
WRITERS = ["en-fr", "marian", "t5", "gpt2", "llama", "bahdanau"]


def asked(name: str, picture: bytes) -> dict[str, Any]:
    if name == "vit":
        return {"image": base64.b64encode(picture).decode()}
    writes = {"generate": {"max_new_tokens": 6}} if name in WRITERS else {}
    return {"text": TEXTS[name], **writes}


def binary(served: Served, number: str, name: str, at: str = "") -> np.ndarray:
    answer = served.client.get(f"/api/traces/{number}/values/{name}", params={"at": at, "format": "binary"})
    assert answer.status_code == 200, answer.text
    shape = [int(n) for n in answer.headers["x-shape"].split(",") if n]
    return np.frombuffer(answer.content, "<f4").reshape(shape)


def test_models_are_described(served: Served) -> None:
    told = {model["name"]: model for model in served.client.get("/api/models").json()["models"]}
    assert list(told) == ["en-fr", "marian", "t5", "bert", "gpt2", "llama", "vit", "bahdanau"]
    assert (told["en-fr"]["family"], told["en-fr"]["tasks"]) == ("encoder-decoder", ["translate"])
    assert told["t5"]["prefixes"]["summarization"] == "summarize: "
    assert (told["bert"]["family"], told["bert"]["generates"]) == ("encoder-only", False)
    assert told["llama"]["decoder"]["positions"] == "rotary"
    assert told["vit"]["reads"] == "image"
    assert told["bahdanau"]["kind"] == "recurrent"
    assert [each["kind"] for each in told["bahdanau"]["attentions"]] == ["cross"]
    kinds = [each["kind"] for each in told["en-fr"]["attentions"]]
    assert kinds == ["encoder"] * 3 + ["decoder", "cross"] * 3


@pytest.mark.parametrize("name", FAMILIES)
def test_values_are_the_networks(name: str, served: Served, models: dict[str, Model], picture: bytes) -> None:
    """Every value is, bit for bit, what a trace of one's own has; each place says what the head says."""
    info = served.run(name, **asked(name, picture))
    model = models[name]
    given = picture if name == "vit" else TEXTS[name]
    kept = served.studio.traces.get(info["id"]).trace
    again = model.trace(
        given, **({"generation": Generation(max_new_tokens=6, beams=model.usage.beams)} if name in WRITERS else {})
    )
    assert [value["name"] for value in info["values"]] == list(again)
    chance = random.Random(0)
    for value in info["values"]:
        assert torch.equal(kept[value["name"]], again[value["name"]]), value["name"]
    for value in chance.sample(info["values"], 12):
        seen = binary(served, info["id"], value["name"])
        assert list(seen.shape) == value["shape"]
        assert np.array_equal(seen, again[value["name"]].numpy()), value["name"]
    assert again.output is not None
    if info["places"] and name != "vit":
        probabilities = again.output[0].softmax(-1)
        for place, row in zip(info["places"], probabilities, strict=True):
            assert place["top"][0]["id"] == int(row.argmax())
            assert place["top"][0]["p"] == pytest.approx(float(row.max()))
    if name == "vit":
        assert info["image"]["pixels"].startswith("data:image/png;base64,")
        assert info["places"][0]["top"][0]["text"] in model.usage.labels


def test_a_translation_is_the_translators(served: Served, models: dict[str, Model]) -> None:
    info = served.run("en-fr", text=SENTENCE)
    assert info["written"] == models["en-fr"].translate(SENTENCE)
    assert [token["text"] for token in info["tokens"]["source"]][:3] == ["The", "▁animal", "▁didn"]
    assert [token["word"] for token in info["tokens"]["source"]][:5] == [0, 1, 2, 2, 3]
    assert served.client.get(f"/api/traces/{info['id']}").json() == info


def test_a_target_of_ones_own(served: Served) -> None:
    info = served.run("en-fr", text="Hello.", target="Salut.")
    assert info["written"] is None
    assert "".join(token["text"] for token in info["tokens"]["target"]) == "<s>Salut."
    ids = [token["id"] for token in info["tokens"]["target"]][1:]
    assert served.run("en-fr", text="Hello.", prefix=ids)["places"] == info["places"]


def test_slices(served: Served) -> None:
    info = served.run("en-fr", text="The cat sat.", target="Le chat.")
    name = "decoder.blocks.0.self_attention.masked_scores"
    whole = binary(served, info["id"], name)
    assert np.array_equal(binary(served, info["id"], name, "0,2,:,1:3"), whole[0, 2, :, 1:3])
    assert np.array_equal(binary(served, info["id"], name, "0,-1"), whole[0, -1])
    told = served.client.get(f"/api/traces/{info['id']}/values/{name}", params={"at": "0,1,0"}).json()
    assert told["values"][0] == pytest.approx(float(whole[0, 1, 0, 0]))
    assert told["values"][1:] == ["-inf"] * (len(told["values"]) - 1)
    assert told["labels"][2] == ["<s>", *[token["text"] for token in info["tokens"]["target"]][1:]]
    path = f"/api/traces/{info['id']}/values/"
    assert "no slice" in sentence(served.client.get(path + name, params={"at": "x"}), 422)
    assert "no 99 among" in sentence(served.client.get(path + name, params={"at": "0,99"}), 422)
    assert "more axes" in sentence(served.client.get(path + name, params={"at": "0,0,0,0,0"}), 422)
    assert "did you mean" in sentence(served.client.get(path + name[:-1]), 404)


@pytest.mark.parametrize("name", FAMILIES)
def test_explanations(name: str, served: Served, picture: bytes) -> None:
    info = served.run(name, **asked(name, picture))
    trace = served.studio.traces.get(info["id"]).trace
    chance = np.random.default_rng(0)
    for value in chance.choice(info["values"], 8, replace=False):
        at = tuple(int(chance.integers(n)) for n in value["shape"])
        path = f"/api/traces/{info['id']}/explain/{value['name']}"
        told = served.client.get(path, params={"at": ",".join(map(str, at))})
        assert told.status_code == 200, told.text
        assert told.json() == json.loads(json.dumps(explain_at(trace, value["name"], at).to_json()))
        assert told.json()["agrees"]
    refused = served.client.get(f"/api/traces/{info['id']}/explain/{info['values'][0]['name']}", params={"at": "0"})
    assert "axes" in sentence(refused, 400)


@pytest.mark.parametrize("name", WRITERS)
def test_next_words(name: str, served: Served, models: dict[str, Model]) -> None:
    model = models[name]
    first = served.client.post("/api/next", json={"model": name, "text": TEXTS[name], "n": 5}).json()
    again = served.client.post(
        "/api/next",
        json={"model": name, "text": TEXTS[name], "prefix": [first["plain"][1]["id"]], "temperature": 0.5, "top_k": 40,
              "top_p": 0.9, "n": 50},
    ).json()  # fmt: skip
    ids = model.tokenizer.encode(TEXTS[name]).ids
    prefix = [first["plain"][1]["id"]]
    with torch.no_grad():
        if model.network.has_encoder:
            logits = model.network(torch.tensor([ids]), torch.tensor([[model.usage.start, *prefix]]))[0, -1:]
        else:
            logits = model.network(torch.tensor([[*ids, *prefix]]))[0, -1:]
    plain = logits.softmax(-1)[0]
    if model.usage.never:
        logits[:, list(model.usage.never)] = -torch.inf
    expected = filters.top_p(filters.top_k(filters.temperature(logits, 0.5), 40), 0.9).softmax(-1)[0]
    assert again["left"] == int((expected > 0).sum())
    for each in again["warped"]:
        assert each["p"] == pytest.approx(float(expected[each["id"]]), rel=1e-4)
    assert again["plain"][0]["id"] == int(plain.argmax()), "the network's own, as a run tells it"
    assert again["plain"][0]["p"] == pytest.approx(float(plain.max()), rel=1e-4)


@pytest.mark.parametrize("name", ["en-fr", "gpt2", "bahdanau"])
def test_beam_search_is_told_as_a_tree(name: str, served: Served, models: dict[str, Model]) -> None:
    model = models[name]
    body = {"model": name, "text": TEXTS[name], "beams": 3, "max_new_tokens": 9, "length_penalty": 0.8}
    told = served.client.post("/api/beams", json=body).json()
    options = Generation(beams=3, n_best=3, max_new_tokens=9, length_penalty=0.8)
    prompt = Prompt(tuple(model.tokenizer.encode(TEXTS[name]).ids))
    [expected] = write(model.network, [prompt], options, model.usage)
    assert [text["ids"] for text in told["texts"]] == [list(text.ids) for text in expected]
    # other batches add the same float32 numbers in another order: some 1e-6 of them
    assert [text["score"] for text in told["texts"]] == pytest.approx([text.score for text in expected], rel=1e-5)
    nodes = {node["number"]: node for step in told["steps"] for node in step}
    for number, step in enumerate(told["steps"]):
        kept = [node for node in step if node["kept"]]
        assert len(kept) == 3 or step is told["steps"][-1], "in the last place every text ends"
        assert all(not node["ended"] for node in kept)
        for node in step:
            parent = nodes[node["parent"]] if number else None
            assert (node["parent"] is None) == (number == 0)
            assert parent is None or parent["kept"]
            assert node["score"] == pytest.approx((parent["score"] if parent else 0.0) + node["logprob"], abs=1e-4)
    best = told["texts"][0]
    ended = [node for step in told["steps"] for node in step if node["ended"] or step is told["steps"][-1]]
    assert any(_path(nodes, node)[: len(best["ids"])] == best["ids"] for node in ended)


def _path(nodes: dict[int, Any], node: dict[str, Any]) -> list[int]:
    ids = [node["token"]["id"]]
    while node["parent"] is not None:
        node = nodes[node["parent"]]
        ids.append(node["token"]["id"])
    return ids[::-1]


def events(client: httpx.Client, body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    found = []
    with client.stream("POST", "/api/generate", json=body) as answer:
        assert answer.status_code == 200
        for block in "".join(answer.iter_text()).strip().split("\n\n"):
            kind, data = block.split("\n")
            found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@pytest.mark.parametrize("name", WRITERS)
def test_texts_are_streamed(name: str, served: Served, models: dict[str, Model]) -> None:
    found = events(served.client, {"model": name, "text": TEXTS[name], "max_new_tokens": 5, "alternatives": 3})
    model = models[name]
    prompt = Prompt(tuple(model.tokenizer.encode(TEXTS[name]).ids))
    [[expected]] = write(model.network, [prompt], Generation(max_new_tokens=5, beams=1), model.usage)
    assert [kind for kind, _ in found] == ["token"] * len(expected.ids) + ["done"]
    assert [data["id"] for kind, data in found if kind == "token"] == list(expected.ids)
    assert found[-1][1]["text"] == model.tokenizer.decode(expected.ids)
    assert found[-1][1]["ended"] == (expected.ended == "end")
    if len(expected.ids) > 2:
        prefix = {"prefix": list(expected.ids[:2]), "max_new_tokens": 3, "alternatives": 0}
        rest = events(served.client, {"model": name, "text": TEXTS[name], **prefix})
        assert [data["id"] for kind, data in rest if kind == "token"] == list(expected.ids[2:5])
    for kind, data in found[:-1]:
        assert kind == "token"
        assert len(data["top"]) == 3
        assert [each["p"] for each in data["top"]] == sorted((each["p"] for each in data["top"]), reverse=True)
        for each in data["top"]:  # the likeliest may be one that it must never write
            assert each["id"] != data["id"] or each["p"] == pytest.approx(np.exp(data["logprob"]), rel=1e-4)


def test_samples_come_again_for_a_seed(served: Served) -> None:
    body = {"model": "gpt2", "text": "the cat", "max_new_tokens": 8, "sample": True, "temperature": 1.5}
    first, again, other = (
        [data.get("id") for _, data in events(served.client, body | {"seed": seed})] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_what_can_not_be_streamed_has_a_status(served: Served) -> None:
    refused = served.client.post("/api/generate", json={"model": "bert", "text": "the cat"})
    assert "cannot generate" in sentence(refused, 400)


def test_edits_change_the_run(served: Served, models: dict[str, Model]) -> None:
    edits = [
        {"kind": "zero", "value": "decoder.blocks.1.cross_attention.heads", "head": 2},
        {"kind": "off", "what": "scaling"},
    ]
    told = served.run("en-fr", text="The cat sat.", edits=edits)
    changed = models["en-fr"].run("The cat sat.", edits)
    assert told["written"] == changed.after.text
    assert told["edits"] == edits
    zeroed = binary(served, told["id"], "decoder.blocks.1.cross_attention.heads")
    assert not zeroed[0, 2].any()
    assert zeroed[0, 1].any()
    explained = served.client.get(
        f"/api/traces/{told['id']}/explain/decoder.blocks.1.cross_attention.heads", params={"at": "0,2,0,0"}
    ).json()
    assert not explained["agrees"], "a zero that was put there is not what the formula gives"
    original = served.run("en-fr", text="The cat sat.")
    patch = [{"kind": "patch", "value": "encoder.blocks.2.output", "trace": original["id"]}]
    patched = served.run("en-fr", text="The dog sat.", edits=patch)
    assert patched["written"] == original["written"], "the decoder reads the other sentence's memory"
    bad = served.client.post(
        "/api/run", json={"model": "en-fr", "text": "a", "edits": [{"kind": "off", "what": "heat"}]}
    )
    assert "no choice 'heat'" in sentence(bad, 400)


def test_lens_and_rollout(served: Served) -> None:
    info = served.run("en-fr", text="The cat sat.")
    layers = served.client.get(f"/api/traces/{info['id']}/lens").json()["layers"]
    assert [place["top"][0]["id"] for place in layers[-1]["places"]] == [
        place["top"][0]["id"] for place in info["places"]
    ]
    told = served.client.get(f"/api/traces/{info['id']}/rollout").json()
    for side in ("source", "target"):
        rows = np.array(told[side]["values"])
        assert rows.shape == tuple(told[side]["shape"]) == (len(info["tokens"][side]),) * 2
        assert rows.sum(-1) == pytest.approx(1.0)


def test_the_notes_follow_their_numbers(served: Served) -> None:
    told = served.client.get("/api/notes").json()
    assert [example["number"] for example in told["examples"]] == list(range(1, 21))
    assert [question["number"] for question in told["quiz"]] == list(range(1, 8))
    third = told["examples"][2]
    assert third["differs"]
    inputs = third["inputs"] | {"memory": {"k1": [1, 0, 1, 0], "k2": [1, 0, 1, 0]}}
    changed = served.client.post("/api/notes/3", json={"inputs": inputs}).json()
    assert changed["true"] == [0.5, 0.5]
    assert changed["printed"] == []
    assert served.client.post("/api/notes/3", json={"inputs": third["inputs"]}).json()["printed"] == third["printed"]
    mistakes = [({}, "same")] + [
        (inputs | {"x": {"q": [1, 2, *rest]}}, said)
        for rest, said in (([], "4 numbers"), ([3, "a"], "a number"), ([3, 1e9], "at most 10"))
    ]
    for bad, said in mistakes:
        assert said in sentence(served.client.post("/api/notes/3", json={"inputs": bad}), 400)
    assert "no example 99" in sentence(served.client.post("/api/notes/99", json={"inputs": {}}), 400)
