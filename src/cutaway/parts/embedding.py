"""From tokens, or patches of an image, to vectors with a notion of where they stand."""

from typing import Literal

import torch
from torch import Tensor, nn

from cutaway.checks import Count, Size, check, check_arguments, describe
from cutaway.errors import ConfigError, InputError
from cutaway.parts.dropout import Dropout
from cutaway.parts.lookup import EmbeddingTable
from cutaway.parts.norms import NormKind, norm
from cutaway.parts.positions import Layout, LearnedPositions, sinusoids
from cutaway.parts.tap import Tap

Positions = Literal["sinusoidal", "sinusoidal_halves", "learned", "rotary", "t5_bias", "none"]
"""The first three are added to the embedding; rotary and t5_bias act inside attention."""


class Embedding(nn.Module):
    """token vector [· √D] + position [+ segment], then norm and dropout if asked for (§3.4). ids [B, T] -> [B, T, D]"""

    def __init__(
        self,
        vocabulary: int,
        d_model: int = 512,
        *,
        positions: Positions = "sinusoidal",
        max_positions: int | None = None,
        n_segments: int = 0,
        scaled: bool = False,
        norm_kind: NormKind | None = None,
        norm_epsilon: float = 1e-5,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check("Embedding: positions", positions, Positions)
        check_arguments("Embedding", Size, vocabulary=vocabulary, d_model=d_model)
        check_arguments("Embedding", Size | None, max_positions=max_positions)
        check_arguments("Embedding", Count, n_segments=n_segments)
        self.kind = positions
        self.scale = d_model**0.5 if scaled else 1.0
        self.tokens = EmbeddingTable(vocabulary, d_model, "token")
        self.segments = EmbeddingTable(n_segments, d_model, "segment") if n_segments else None
        self.positions: LearnedPositions | None = None
        if positions == "learned":
            if max_positions is None:
                raise ConfigError("positions='learned' needs max_positions: how many vectors to learn")
            self.positions = LearnedPositions(max_positions, d_model)
        self.norm = None if norm_kind is None else norm(norm_kind, d_model, norm_epsilon)
        self.dropout = Dropout(dropout)
        self.token_vectors = Tap("BTD", "table[token] · √D" if scaled else "table[token]")
        if n_segments:
            self.segment_vectors = Tap("BTD", "table[segment]")
        if positions in ("learned", "sinusoidal", "sinusoidal_halves"):
            self.position_vectors = Tap("BTD", "table[position]" if positions == "learned" else "sin, cos of position")
        self.output = Tap("BTD", "the sum of these" + (", normalised" if self.norm is not None else ""))

    def length(self, tokens_BT: Tensor) -> int:
        """The number of positions that these tokens take."""
        if not isinstance(tokens_BT, Tensor):
            raise InputError(f"tokens are {describe(tokens_BT)}; give a torch tensor of ids, [batch, length]")
        if tokens_BT.dim() != 2:
            raise InputError(f"tokens have shape {list(tokens_BT.shape)}; expected [batch, length]")
        if tokens_BT.shape[1] == 0:
            raise InputError("tokens have length 0; give at least one token (a start or end symbol)")
        if tokens_BT.shape[0] == 0:
            raise InputError("tokens have no rows; give a batch of at least one text")
        return tokens_BT.shape[1]

    def forward(self, tokens_BT: Tensor, positions: Tensor, n_tokens: int, segments_BT: Tensor | None = None) -> Tensor:
        """`positions` [T] or [B, T]; `n_tokens`: the length so far, the cached part included."""
        x_BTD = self.tokens(tokens_BT)
        x_BTD = self.token_vectors(x_BTD * self.scale if self.scale != 1.0 else x_BTD)
        if self.segments is not None:
            if segments_BT is None:
                segments_BT = torch.zeros_like(tokens_BT)
            elif not isinstance(segments_BT, Tensor):
                raise InputError(f"segments are {describe(segments_BT)}; give a torch tensor of ids, as for the tokens")
            elif segments_BT.shape != tokens_BT.shape:
                raise InputError(
                    f"segments have shape {list(segments_BT.shape)}; the tokens they belong to have "
                    f"{list(tokens_BT.shape)}"
                )
            x_BTD = x_BTD + self.segment_vectors(self.segments(segments_BT))
        elif segments_BT is not None:
            raise InputError("segments were given, but this model has no segment embedding; leave them out")
        added = self._position_vectors(positions, n_tokens, x_BTD)
        if added is not None:
            x_BTD = x_BTD + self.position_vectors(added.to(x_BTD.dtype).expand_as(x_BTD))
        if self.norm is not None:
            x_BTD = self.norm(x_BTD)
        return self.output(self.dropout(x_BTD))

    def _position_vectors(self, positions: Tensor, n_tokens: int, x_BTD: Tensor) -> Tensor | None:
        if self.positions is not None:
            self.positions.check(n_tokens)
            return self.positions(positions)
        if self.kind not in ("sinusoidal", "sinusoidal_halves"):
            return None
        layout: Layout = "interleaved" if self.kind == "sinusoidal" else "halves"
        return sinusoids(n_tokens, x_BTD.shape[-1], layout, x_BTD.dtype, x_BTD.device)[positions]


class PatchEmbedding(nn.Module):
    """An image cut into squares, each a vector: patch W + b, a class token in front, learned positions added (ViT).

    images [B, channels, I, J] -> [B, 1 + P, D] with P = (I / patch) · (J / patch)
    """

    def __init__(
        self,
        d_model: int,
        *,
        image_size: int = 224,
        patch_size: int = 16,
        channels: int = 3,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_arguments(
            "PatchEmbedding", Size, d_model=d_model, image_size=image_size, patch_size=patch_size, channels=channels
        )
        if image_size % patch_size:
            raise ConfigError(f"patch_size={patch_size} does not divide image_size={image_size}: patches must tile it")
        self.image_size, self.patch_size, self.channels = image_size, patch_size, channels
        self.n_positions = 1 + (image_size // patch_size) ** 2
        self.patches = nn.Linear(channels * patch_size**2, d_model)
        self.start = nn.Parameter(torch.zeros(1, 1, d_model))  # ViT's [class] token
        self.positions = LearnedPositions(self.n_positions, d_model)
        self.dropout = Dropout(dropout)
        self.pixels = Tap("BPE", "the pixels of each patch: channels · rows · columns")
        self.patch_vectors = Tap("BPD", "pixels W + b")
        self.position_vectors = Tap("BTD", "table[position]")
        self.output = Tap("BTD", "class token and patch vectors, plus positions")

    def length(self, images_BCIJ: Tensor) -> int:
        """The number of positions that these images take."""
        if not isinstance(images_BCIJ, Tensor):
            raise InputError(
                f"images are {describe(images_BCIJ)}; give a torch tensor, [batch, channels, rows, columns]"
            )
        shape, side = list(images_BCIJ.shape), self.image_size
        problem = None
        if len(shape) != 4:
            problem = "give a batch, even of one image"
        elif shape[0] == 0:
            problem = "give at least one image"
        elif shape[1] != self.channels:
            problem = f"give images of {self.channels} channels, and channels before rows and columns"
        elif shape[2:] != [side, side]:
            problem = f"resize them to {side} × {side}"
        if problem is not None:
            raise InputError(f"images have shape {shape}; expected [batch, {self.channels}, {side}, {side}]: {problem}")
        weight, device = self.patches.weight.dtype, images_BCIJ.device.type
        cast = images_BCIJ.is_floating_point() and torch.is_autocast_enabled(device)
        if images_BCIJ.dtype != weight and not cast:
            given, wanted = (str(dtype).removeprefix("torch.") for dtype in (images_BCIJ.dtype, weight))
            raise InputError(f"images have dtype {given}; this model computes in {wanted}: convert them with .to()")
        return self.n_positions

    def cut(self, images_BCIJ: Tensor) -> Tensor:
        """[B, C, I, J] -> [B, P, C · patch · patch], row by row from the top left."""
        size = self.patch_size
        B, C, I, J = images_BCIJ.shape  # noqa: E741  # rows of the image
        grid = images_BCIJ.reshape(B, C, I // size, size, J // size, size)
        return grid.permute(0, 2, 4, 1, 3, 5).reshape(B, -1, C * size * size)

    def forward(self, images_BCIJ: Tensor, positions: Tensor, n_tokens: int, segments: Tensor | None = None) -> Tensor:
        if segments is not None:
            raise InputError("segments were given, but images have none; leave them out")
        patches_BPD = self.patch_vectors(self.patches(self.pixels(self.cut(images_BCIJ))))
        start_B1D = self.start.to(patches_BPD.dtype).expand(patches_BPD.shape[0], -1, -1)
        x_BTD = torch.cat((start_B1D, patches_BPD), dim=1)
        added_TD = self.positions(positions)
        return self.output(self.dropout(x_BTD + self.position_vectors(added_TD.expand_as(x_BTD))))
