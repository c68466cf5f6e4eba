"""The Transformer's predecessors behind the same calls: recurrent encoder-decoder, with attention or without.

Without attention (Sutskever 2014) the source reaches the decoder only as its first state; the presets read it
backward, as he did, so that the first words, which are said first, are not the longest ago. With Bahdanau's (2015) each
step looks at the source before it reads its word; with Luong's (2015), after. Without an encoder: a language model.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from cutaway.checks import describe
from cutaway.errors import ConfigError, InputError
from cutaway.models.config import RecurrentConfig, RecurrentStackConfig
from cutaway.models.heads import LanguageModelHead
from cutaway.models.network import Network
from cutaway.parts import masks
from cutaway.parts.cache import Cache, Memory
from cutaway.parts.dropout import Dropout
from cutaway.parts.embedding import Embedding
from cutaway.parts.recurrent import RecurrentLayer, State
from cutaway.parts.recurrent_attention import RecurrentAttention
from cutaway.parts.tap import Tap, cache_taps


def build_embedding(config: RecurrentStackConfig) -> Embedding:
    return Embedding(config.vocabulary, config.d_model, positions="none", dropout=config.dropout)


class RecurrentEncoder(nn.Module):
    """Layers one above the other, each in both directions if `bidirectional`. ids [B, S] -> [B, S, E], last states"""

    def __init__(self, config: RecurrentStackConfig, *, attended: bool) -> None:
        super().__init__()
        self.embedding = build_embedding(config)
        self.dropout = Dropout(config.dropout)
        self.forwards = nn.ModuleList()
        self.backwards = nn.ModuleList()
        for i in range(config.n_layers):
            d_in = config.d_model if i == 0 else config.d_output
            layer = (config.cell, d_in, config.d_hidden)
            self.forwards.append(RecurrentLayer(*layer, reverse=config.backward, weight_dropout=config.weight_dropout))
            if config.bidirectional:
                self.backwards.append(RecurrentLayer(*layer, reverse=True, weight_dropout=config.weight_dropout))
        # Without attention the decoder reads the last states only.
        self.output = Tap("BSE", "the top layer's states, both directions side by side", replaceable=attended)

    def forward(self, tokens_BS: Tensor, mask_BS: Tensor | None) -> tuple[Tensor, State]:
        S = self.embedding.length(tokens_BS)
        x_BSE = self.embedding(tokens_BS, torch.arange(S, device=tokens_BS.device), S)
        final: list[Tensor] = []
        for i, forwards in enumerate(self.forwards):
            if i > 0:
                x_BSE = self.dropout(x_BSE)
            directions = [layer(x_BSE, mask_BT=mask_BS) for layer in (forwards, *self.backwards[i : i + 1])]
            x_BSE = torch.cat([outputs for outputs, _ in directions], dim=-1)
            final += [torch.cat(parts, dim=-1) for parts in zip(*(state for _, state in directions), strict=True)]
        return self.output(x_BSE), tuple(final)


class Bridge(nn.Linear):
    """From the encoder to the decoder: a layer's first state, tanh(W h + b). h [B, E] -> [B, D]"""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__(d_in, d_out)
        self.output = Tap("BD", "tanh(W h), h the encoder's last state")

    def forward(self, h_BE: Tensor) -> Tensor:
        return self.output(torch.tanh(super().forward(h_BE)))


class RecurrentDecoder(nn.Module):
    """Layers one above the other, left to right; with an encoder, a readout that sees state, word and context."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        stack = config.decoder
        self.attention: RecurrentAttention | None = None
        d_context = 0
        if config.encoder is not None and config.attention is not None:
            d_context = config.encoder.d_output
            self.attention = RecurrentAttention(config.attention, stack.d_hidden, d_context)
        self.feeds_context = config.attention == "additive"
        self.embedding = build_embedding(stack)
        self.dropout = Dropout(stack.dropout)
        self.layers = nn.ModuleList()
        for i in range(stack.n_layers):
            d_in = stack.d_hidden if i > 0 else stack.d_model + (d_context if self.feeds_context else 0)
            # A language model's last layer is as wide as the embedding, so that the two can be tied (AWD-LSTM).
            top_of_language_model = config.encoder is None and i == stack.n_layers - 1
            d_out = stack.d_model if top_of_language_model else stack.d_hidden
            self.layers.append(RecurrentLayer(stack.cell, d_in, d_out, weight_dropout=stack.weight_dropout))
        self.bridge: nn.ModuleList | None = None
        self.readout: nn.Linear | None = None
        if config.encoder is not None:
            n_states = stack.n_layers * (2 if stack.cell == "lstm" else 1)
            self.bridge = nn.ModuleList(Bridge(config.encoder.d_output, stack.d_hidden) for _ in range(n_states))
            d_word = stack.d_model if self.feeds_context else 0
            self.readout = nn.Linear(stack.d_hidden + d_context + d_word, stack.d_model)
        self.output = Tap("BTD", "tanh(W [state; context; word])" if self.readout else "the top layer's states")

    def first_state(self, memory: Memory | None) -> State:
        """tanh(W · the encoder's last state), layer by layer; without an encoder nothing, and the layers take zeros."""
        if self.bridge is None or memory is None:
            return ()
        n = len(self.bridge) // len(self.layers)  # states of a layer: h, or h and c
        last = len(memory.final) - n
        return tuple(
            bridge(memory.final[min(i - i % n, last) + i % n]).repeat_interleave(memory.repeats, dim=0)
            for i, bridge in enumerate(self.bridge)
        )

    def run(
        self, x_BTE: Tensor, state: State, mask_BT: Tensor | None, recurrent_weights: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, State]:
        """All layers over these inputs. `recurrent_weights`: each layer's U, dropped out once for a whole sequence."""
        n = len(state) // len(self.layers)
        last: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            u = None if recurrent_weights is None else recurrent_weights[i]
            x_BTE, new = layer(
                self.dropout(x_BTE) if i else x_BTE, state[i * n : (i + 1) * n] or None, mask_BT=mask_BT, u_weight=u
            )  # fmt: skip
            last += new
        return x_BTE, tuple(last)

    def forward(self, tokens_BT: Tensor, memory: Memory | None, cache: Cache | None, mask_BT: Tensor | None) -> Tensor:
        T = self.embedding.length(tokens_BT)
        y_BTD = self.embedding(tokens_BT, torch.arange(T, device=tokens_BT.device), T)
        state = cache.state if cache is not None and cache.state else self.first_state(memory)
        contexts_BTE: Tensor | None = None
        if self.attention is None or memory is None:
            s_BTD, state = self.run(y_BTD, state, mask_BT)
        else:
            keys_BSD = self._keys(memory, cache)
            bias = masks.bias(1, memory.states.shape[1], memory.states, causal=False, visible_BS=memory.mask)
            if self.feeds_context:
                s_BTD, contexts_BTE, state = self._step_by_step(y_BTD, state, mask_BT, memory, keys_BSD, bias)
            else:
                s_BTD, state = self.run(y_BTD, state, mask_BT)
                contexts_BTE = self.attention(s_BTD, keys_BSD, memory.states, bias)
        if cache is not None:
            cache.state = state
        if self.readout is None:
            return self.output(self.dropout(s_BTD))
        seen = [s_BTD] if contexts_BTE is None else [s_BTD, contexts_BTE]
        seen += [y_BTD] if self.feeds_context else []
        return self.output(self.dropout(torch.tanh(self.readout(torch.cat(seen, dim=-1)))))

    def _step_by_step(
        self, y_BTD: Tensor, state: State, mask_BT: Tensor | None, memory: Memory, keys_BSD: Tensor, bias: masks.Bias
    ) -> tuple[Tensor, Tensor, State]:
        """Bahdanau: c_t = attend(s_{t-1}), s_t = f(s_{t-1}, [y_{t-1}; c_t])."""
        assert self.attention is not None
        states, contexts = [], []
        top = -2 if self.layers[0].cell == "lstm" else -1
        recurrent_weights = [cast(RecurrentLayer, layer).recurrent_weight() for layer in self.layers]
        for t in range(y_BTD.shape[1]):
            context_B1E = self.attention(state[top].unsqueeze(1), keys_BSD, memory.states, bias)
            word_B1E = torch.cat((y_BTD[:, t : t + 1], context_B1E), dim=-1)
            mask_B1 = None if mask_BT is None else mask_BT[:, t : t + 1]
            s_B1D, state = self.run(word_B1E, state, mask_B1, recurrent_weights)
            states.append(s_B1D)
            contexts.append(context_B1E)
        return torch.cat(states, dim=1), torch.cat(contexts, dim=1), state

    def _keys(self, memory: Memory, cache: Cache | None) -> Tensor:
        """The projected source, made once for a whole decoding."""
        assert self.attention is not None
        if cache is None:
            return self.attention.project(memory.states)
        kv_cache = cache.of("attention", grows=False)
        kv = kv_cache.filled
        if kv is None:
            kv = kv_cache.append(self.attention.project(memory.states).unsqueeze(1), memory.states.unsqueeze(1))
        return kv.keys.squeeze(1)


class Recurrent(Network):
    """The calls of a Transformer, by recurrence.

    Its first weights are torch's defaults; `cutaway.build` draws them as the model's paper does.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        if not isinstance(config, RecurrentConfig):
            raise ConfigError(f"Recurrent takes a RecurrentConfig, not {describe(config)}; see cutaway.build")
        self.config: RecurrentConfig = config
        self.encoder = (
            None if config.encoder is None else RecurrentEncoder(config.encoder, attended=config.attention is not None)
        )
        self.decoder = RecurrentDecoder(config)
        if config.share_embeddings and self.encoder is not None:
            self.decoder.embedding.tokens = self.encoder.embedding.tokens
        self.head = LanguageModelHead(config.head, config.decoder.d_model, config.decoder.vocabulary)
        cache_taps(self)

    def encode(self, source: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Memory:
        if self.encoder is None:
            raise InputError("this model has no encoder: decode() its tokens")
        if segments is not None:
            raise InputError("segments were given, but a recurrent model has none; leave them out")
        self.encoder.embedding.length(source)
        if mask is not None:
            masks.require_tokens(masks.check_mask(mask, source.shape, "the mask"), "the mask")
        states_BSE, final = self.encoder(source, mask)
        return Memory(states_BSE, mask, final)

    def decode_hidden(
        self, tokens: Tensor, memory: Memory | None = None, cache: Cache | None = None, mask: Tensor | None = None
    ) -> Tensor:
        self._check_memory(memory, cache)
        n_new, n_rows = self.decoder.embedding.length(tokens), tokens.shape[0]
        if mask is not None:
            masks.check_mask(mask, tokens.shape, "the mask")
        if memory is not None:
            self._check_states(memory, n_rows)
        if cache is not None:
            cache.check(n_rows, memory)
        visible_BS = mask if cache is None else cache.visible(mask, n_rows, n_new, tokens.device)
        if visible_BS is not None:
            masks.require_tokens(visible_BS, "the mask")
        hidden_BTD = self.decoder(tokens, memory, cache, mask)
        if cache is not None:
            cache.advance(n_new, visible_BS)
        return hidden_BTD

    def _check_states(self, memory: Memory, n_rows: int) -> None:
        """The memory is this encoder's: for each row its states, and the last ones, which start the decoder."""
        assert self.config.encoder is not None
        width, n_states = self.config.encoder.d_output, 2 if self.config.encoder.cell == "lstm" else 1
        memory.check(n_rows, width)
        shapes = {tuple(state.shape) for state in memory.final}
        if len(memory.final) < n_states or shapes != {(len(memory.states), width)}:
            raise InputError(
                f"the memory's last states have shapes {[list(state.shape) for state in memory.final]}; this decoder "
                f"starts from an encoder's, {[n_rows, width]} each: give what encode(source) returned"
            )

    def apply_head(self, hidden_BTD: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.head(hidden_BTD, mask, self.table)

    @property
    def table(self) -> Tensor:
        """The word vectors of the decoder."""
        return self.decoder.embedding.tokens.weight
