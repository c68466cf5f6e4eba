"""Embeddings of tokens, segments and patches against the numpy oracle."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from cutaway.errors import ConfigError, InputError
from cutaway.parts.embedding import Embedding, PatchEmbedding
from cutaway.parts.lookup import EmbeddingTable
from tests.numbers import oracle
from tests.support.families import arrays, noisy
from tests.support.parts import CLOSE, B, D, T, close, double, equal


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("kind", ["sinusoidal", "sinusoidal_halves", "learned", "rotary", "t5_bias", "none"])
def test_embedding(run, kind, scaled):
    embedding = noisy(Embedding(19, D, positions=kind, max_positions=11, scaled=scaled, n_segments=2))
    p = arrays(embedding)
    tokens, segments = torch.randint(19, (B, T)), torch.randint(2, (B, T))
    table = {
        "sinusoidal": oracle.sinusoidal(11, D),
        "sinusoidal_halves": oracle.sinusoidal(11, D, "halves"),
        "learned": p.get("positions.weight"),
    }.get(kind, np.zeros((11, D)))
    assert ("positions.weight" in p) is (kind == "learned")
    words = p["tokens.weight"][tokens] * (math.sqrt(D) if scaled else 1)
    for place in (torch.arange(2, 2 + T), torch.tensor([[0, 0, 1, 2, 3], [0, 1, 2, 3, 4], [2, 3, 4, 5, 6]])):
        y = run(embedding, tokens, place, 2 + T, segments)
        close(y, words + table[place.numpy()] + p["segments.weight"][segments])
    y = run(embedding, tokens, place, 2 + T)
    close(y, words + table[place.numpy()] + p["segments.weight"][0])  # no segments given: all are the first


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_embedding_with_a_norm(run, kind):
    embedding = noisy(Embedding(19, D, positions="none", norm_kind=kind, norm_epsilon=0.1))
    tokens = torch.randint(19, (B, T))
    p = arrays(embedding)
    formula = oracle.layer_norm if kind == "layer" else oracle.rms_norm
    theirs = formula(oracle.under(p, "norm."), p["tokens.weight"][tokens], 0.1)
    close(run(embedding, tokens, torch.arange(T), T), theirs)


def test_embedding_errors():
    embedding = Embedding(19, D, positions="learned", max_positions=5)
    with pytest.raises(InputError, match=r"^tokens have shape \[4\]; expected \[batch, length\]$"):
        embedding.length(torch.arange(4))
    with pytest.raises(InputError, match=r"^tokens have length 0; give at least one token"):
        embedding.length(torch.ones(2, 0).long())
    with pytest.raises(InputError, match=r"^6 tokens, but this model learned only 5 positions"):
        embedding(torch.zeros(1, 6).long(), torch.arange(6), 6)
    with pytest.raises(InputError, match="this model has no segment embedding"):
        embedding(torch.zeros(1, 2).long(), torch.arange(2), 2, torch.zeros(1, 2).long())
    with pytest.raises(InputError, match=r"^token id 19 is outside this model's 19"):
        embedding(torch.tensor([[19]]), torch.arange(1), 1)
    with pytest.raises(ConfigError, match="positions='learned' needs max_positions"):
        Embedding(19, D, positions="learned")


@pytest.mark.parametrize("channels", [1, 3])
def test_patch_embedding(run, channels):
    embedding = noisy(PatchEmbedding(D, image_size=12, patch_size=4, channels=channels))
    images = torch.randn(B, channels, 12, 12)
    p = arrays(embedding)
    assert embedding.length(images) == 10
    y = run(embedding, images, torch.arange(10), 10)
    for b in range(B):
        cut = oracle.patches(double(images[b]), 4)
        np.testing.assert_array_equal(double(embedding.cut(images)[b]), cut)
        words = oracle.linear(oracle.under(p, "patches."), cut)
        close(y[b], np.concatenate([p["start"][0], words]) + p["positions.weight"])


def test_patches_are_a_convolution():
    embedding = noisy(PatchEmbedding(D, image_size=12, patch_size=4))
    images = torch.randn(B, 3, 12, 12)
    kernel = embedding.patches.weight.view(D, 3, 4, 4)
    theirs = nn.functional.conv2d(images, kernel, embedding.patches.bias, stride=4).flatten(2).mT
    ours = embedding(images, torch.arange(10), 10)[:, 1:] - embedding.positions.weight[1:]
    torch.testing.assert_close(ours, theirs, **CLOSE)


def test_patch_embedding_errors():
    embedding = PatchEmbedding(D, image_size=12, patch_size=4)
    for shape, way_out in (
        ((2, 3, 12, 11), "resize them to 12 × 12"), ((3, 12, 12), "give a batch, even of one image"),
        ((2, 1, 12, 12), "give images of 3 channels, and channels before rows and columns"),
        ((2, 12, 12, 3), "give images of 3 channels, and channels before rows and columns"),
        ((0, 3, 12, 12), "give at least one image"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=rf"expected \[batch, 3, 12, 12\]: {way_out}$"):
            embedding.length(torch.zeros(shape))
    with pytest.raises(InputError, match="images have dtype uint8; this model computes in float32"):
        embedding.length(torch.zeros(1, 3, 12, 12, dtype=torch.uint8))
    with pytest.raises(InputError, match="images have dtype float64; this model computes in float32"):
        embedding.length(torch.zeros(1, 3, 12, 12, dtype=torch.float64))
    with pytest.raises(InputError, match=r"images are \[0\] \(list\); give a torch tensor"):
        embedding.length([0])
    with pytest.raises(ConfigError, match="PatchEmbedding: patch_size=0 must be at least 1"):
        PatchEmbedding(D, image_size=12, patch_size=0)
    with pytest.raises(ConfigError, match="patch_size=5 does not divide image_size=12"):
        PatchEmbedding(D, image_size=12, patch_size=5)
    with pytest.raises(InputError, match="images have none"):
        embedding(torch.zeros(1, 3, 12, 12), torch.arange(10), 10, torch.zeros(1, 10))


def test_table():
    table = EmbeddingTable(5, D, "token")
    ids = torch.tensor([[4, 0], [2, 2]])
    equal(table(ids), table.weight[ids])
    equal(table(ids.int()), table.weight[ids])


def test_table_errors():
    table = EmbeddingTable(5, D, "token")
    for wrong in (5, -1):
        with pytest.raises(InputError, match=rf"^token id {wrong} is outside this model's 5 \(0 to 4\); was the input"):
            table(torch.tensor([[1, wrong]]))
    for ids, name in ((torch.ones(2), "float32"), (torch.ones(2).bool(), "bool"), (torch.ones(2).half(), "float16")):
        with pytest.raises(InputError, match=f"^token ids have dtype {name}; they must be whole numbers"):
            table(ids)
