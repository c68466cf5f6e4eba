"""Scaled dot-product and multi-head attention (§3.2): one class for every use of it.

Queries come from `x`; keys and values from `memory`, which is `x` itself in self-attention. Masked, cross,
grouped-query, rotary and T5 attention are arguments, not subclasses.
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cutaway.checks import Probability, Size, check_arguments
from cutaway.errors import ConfigError, InputError
from cutaway.kernels import training
from cutaway.kernels.choice import WIDEST, current
from cutaway.parts.dropout import draw_seed, dropout, level_of
from cutaway.parts.kv_cache import KeyValues, gathered
from cutaway.parts.masks import NO_BIAS, Bias
from cutaway.parts.norms import widened
from cutaway.parts.positions import Rotation
from cutaway.parts.tap import Tap, heard


def split_heads(x_BTE: Tensor, n_heads: int) -> Tensor:
    """[B, T, H·K] -> [B, H, T, K]"""
    return x_BTE.view(*x_BTE.shape[:-1], n_heads, -1).transpose(1, 2)


def merge_heads(x_BHTK: Tensor) -> Tensor:
    """[B, H, T, K] -> [B, T, H·K]: the heads side by side, the notes' concatenation."""
    return x_BHTK.transpose(1, 2).flatten(2)


def head_width(d_model: int, n_heads: int, d_head: int | None = None) -> int:
    """d_head, by default d_model / n_heads."""
    if d_head is not None:
        return d_head
    if d_model % n_heads:
        divisors = [n for n in range(1, min(d_model, 128) + 1) if d_model % n == 0]
        raise ConfigError(f"n_heads={n_heads} does not divide d_model={d_model}; choose one of {divisors}")
    return d_model // n_heads


class Attention(nn.Module):
    """softmax(Q Kᵀ / √K + bias) V in H heads, concatenated, then a linear layer. x [B, T, D] -> [B, T, D]

    Grouped queries: G < H key/value heads, each serving H/G query heads.

        queries      0 1 2 3   4 5 6 7
        keys/values     0         1        H = 8, G = 2
    """

    def __init__(
        self,
        d_model: int = 512,
        n_heads: int = 8,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        qkv_bias: bool = True,
        out_bias: bool = True,
        scale_scores: bool = True,
        rotary: bool = False,
        cross: bool = False,
        position_bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        """`cross` and `position_bias` (T5's) say where it stands, for the formulas of its taps; any may attend both."""
        super().__init__()
        check_arguments("Attention", Size, d_model=d_model, n_heads=n_heads)
        check_arguments("Attention", Size | None, n_kv_heads=n_kv_heads, d_head=d_head)
        check_arguments("Attention", Probability, dropout=dropout)
        d_head = head_width(d_model, n_heads, d_head)
        self.n_heads = n_heads
        self.n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        if n_heads % self.n_kv_heads:
            raise ConfigError(
                f"n_kv_heads={n_kv_heads} does not divide n_heads={n_heads}: each must serve the same number of queries"
            )
        self.scale = d_head**-0.5 if scale_scores else 1.0
        self.rotary = rotary
        self.cross = cross
        self.dropout = dropout
        # Faster ways to do the same, which engines/ may give: q, k and v of self-attention in one product; attend().
        self.joined: nn.Module | None = None
        self.fused: Fused | None = None
        self.q = nn.Linear(d_model, n_heads * d_head, bias=qkv_bias)
        self.k = nn.Linear(d_model, self.n_kv_heads * d_head, bias=qkv_bias)
        self.v = nn.Linear(d_model, self.n_kv_heads * d_head, bias=qkv_bias)
        self.out = nn.Linear(n_heads * d_head, d_model, bias=out_bias)

        def linear(x: str, name: str, bias: bool) -> str:
            return f"{x} W_{name} + b_{name}" if bias else f"{x} W_{name}"

        source = "memory" if cross else "x"
        self.queries = Tap("BHTK", linear("x", "Q", qkv_bias))
        self.keys = Tap("BGSK", linear(source, "K", qkv_bias))
        self.values = Tap("BGSK", linear(source, "V", qkv_bias))
        if rotary:
            self.rotated_queries = Tap("BHTK", "queries, turned by their position")
            self.rotated_keys = Tap("BGSK", "keys, turned by their position")
        self.scores = Tap("BHTS", "q kᵀ")
        self.scaled_scores = Tap("BHTS", "scores / √K" if scale_scores else "scores (this model does not scale)")
        added = "position bias, and -∞ where one may not look" if position_bias else "bias: -∞ where one may not look"
        self.masked_scores = Tap("BHTS", f"scaled_scores + {added}")
        self.weights = Tap("BHTS", "softmax(masked_scores) over the keys")
        self.inside = (self.scores, self.scaled_scores, self.masked_scores, self.weights)
        self.heads = Tap("BHTK", "weights · v")
        self.concatenated = Tap("BTE", "the heads side by side")
        self.output = Tap("BTD", linear("concatenated", "O", out_bias))

    def forward(
        self,
        x_BTD: Tensor,
        memory_BSD: Tensor | None = None,
        *,
        bias: Bias = NO_BIAS,
        rotation: Rotation | None = None,
        slot: KeyValues | None = None,
        serves: int = 1,
        holders: Tensor | None = None,
    ) -> Tensor:
        """`memory` None: self-attention. `slot` remembers keys and values: x's are appended, memory's made once.

        `serves`: how many neighbouring rows of x read each row of the memory. `holders` [B, S]: the rows of the slot
        that hold the keys and values of each row's tokens (None: its own).
        """
        self._check(x_BTD, memory_BSD, serves)
        if (rotation is not None) != self.rotary:
            raise InputError("a rotation belongs to an attention made with rotary=True, and only to one")
        made = None if memory_BSD is None or slot is None else slot.all
        if memory_BSD is None and self.joined is not None:
            E, G = self.q.out_features, self.k.out_features
            q_BTE, k_BSE, v_BSE = self.joined(x_BTD).split((E, G, G), dim=-1)
        else:
            q_BTE = self.q(x_BTD)
            source_BSD = x_BTD if memory_BSD is None else memory_BSD
            if made is None:
                k_BSE, v_BSE = self.k(source_BSD), self.v(source_BSD)
        q_BHTK = self.queries(split_heads(q_BTE, self.n_heads))
        if rotation is not None:
            q_BHTK = self.rotated_queries(rotation.turn(q_BHTK))
        if made is not None:
            k_BGSK, v_BGSK = made
        else:
            k_BGSK = self.keys(split_heads(k_BSE, self.n_kv_heads))
            v_BGSK = self.values(split_heads(v_BSE, self.n_kv_heads))
            if rotation is not None:
                k_BGSK = self.rotated_keys(rotation.turn(k_BGSK))
            if slot is not None:
                k_BGSK, v_BGSK = slot.append(k_BGSK, v_BGSK)
        heads_BHTK = self.heads(self.attend(q_BHTK, k_BGSK, v_BGSK, bias, serves, holders))
        return self.output(self.out(self.concatenated(merge_heads(heads_BHTK))))

    def _check(self, x_BTD: Tensor, memory_BSD: Tensor | None, serves: int = 1) -> None:
        """Vectors as wide as this attention's, and a memory for each row."""
        D = self.q.in_features
        for what, value in (("x", x_BTD), ("memory", memory_BSD)):
            if value is not None and (value.dim() != 3 or value.shape[-1] != D):
                raise InputError(f"{what} has shape {list(value.shape)}; this attention takes [batch, length, {D}]")
        if memory_BSD is not None and (served := memory_BSD.shape[0] * serves) != x_BTD.shape[0]:
            raise InputError(f"x has {x_BTD.shape[0]} rows, but the memory has {served}; give as many")

    def attend(
        self,
        q_BHTK: Tensor,
        k_BGSK: Tensor,
        v_BGSK: Tensor,
        bias: Bias = NO_BIAS,
        serves: int = 1,
        holders: Tensor | None = None,
    ) -> Tensor:
        """softmax(q kᵀ · scale + bias) v: step by step if somebody listens or it is faster, else fused. The contract
        tests hold the two equal."""
        p = self.dropout if self.training else 0.0
        listened = heard(*self.inside)
        if self.fused is not None and not listened:
            return self.fused(q_BHTK, k_BGSK, v_BGSK, bias, self.scale, serves, holders)
        if holders is not None:
            k_BGSK, v_BGSK = gathered(k_BGSK, holders), gathered(v_BGSK, holders)
        if serves > 1:
            return self._attend_shared(q_BHTK, k_BGSK, v_BGSK, bias, serves, listened)
        if not listened and self.training and kernel_is_faster(q_BHTK, k_BGSK, v_BGSK, bias, p):
            seed = draw_seed() if p > 0.0 else 0
            return training.attend(q_BHTK, k_BGSK, v_BGSK, bias.dense, self.scale, level_of(p) or 0, seed)
        if not listened and fused_is_faster(q_BHTK, k_BGSK, p):
            return fused(q_BHTK, k_BGSK, v_BGSK, bias, self.scale, dropout=p)
        scores_BHTS = self.scores(_grouped(q_BHTK, k_BGSK.mT))
        scaled_BHTS = self.scaled_scores(scores_BHTS * self.scale if self.scale != 1.0 else scores_BHTS)
        masked_BHTS = self.masked_scores(scaled_BHTS if bias.dense is None else scaled_BHTS + bias.dense)
        weights_BHTS = self.weights(widened(masked_BHTS).softmax(-1).to(v_BGSK.dtype))
        return _grouped(dropout(weights_BHTS, p), v_BGSK)

    def _attend_shared(
        self, q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, bias: Bias, n: int, listened: bool
    ) -> Tensor:
        """Rows that read one memory are so many more queries of it: nothing is copied. Who looks sees row by row."""
        if listened:
            dense = None if bias.dense is None else bias.dense.repeat_interleave(n, dim=0)
            k_BGSK, v_BGSK = k_BGSK.repeat_interleave(n, dim=0), v_BGSK.repeat_interleave(n, dim=0)
            return self.attend(q_BHTK, k_BGSK, v_BGSK, Bias(dense))
        B, H, T, K = q_BHTK.shape
        together = q_BHTK.view(B // n, n, H, T, K).transpose(1, 2).reshape(B // n, H, n * T, K)
        heads = self.attend(together, k_BGSK, v_BGSK, bias)
        return heads.view(B // n, H, n, T, K).transpose(1, 2).reshape(B, H, T, K)


class Fused(Protocol):
    """attend() without its steps."""

    def __call__(
        self,
        q_BHTK: Tensor,
        k_BGSK: Tensor,
        v_BGSK: Tensor,
        bias: Bias,
        scale: float,
        serves: int,
        holders: Tensor | None,
    ) -> Tensor: ...


def fused(q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, bias: Bias, scale: float, *, dropout: float = 0.0) -> Tensor:
    """attend() by torch's kernel."""
    return F.scaled_dot_product_attention(
        q_BHTK, k_BGSK, v_BGSK,
        attn_mask=None if bias.causal else bias.dense,
        dropout_p=dropout, is_causal=bias.causal, scale=scale,
        enable_gqa=q_BHTK.shape[1] != k_BGSK.shape[1],
    )  # fmt: skip


def _grouped(a_BHTX: Tensor, b_BGXY: Tensor) -> Tensor:
    """a @ b where each of b's G heads serves H/G neighbouring heads of a; no copy of b is made."""
    (B, H, T, X), G = a_BHTX.shape, b_BGXY.shape[1]
    if H == G:
        return a_BHTX @ b_BGXY
    return (a_BHTX.reshape(B, G, H // G * T, X) @ b_BGXY).view(B, H, T, -1)


def kernel_is_faster(q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, bias: Bias, dropout: float) -> bool:
    """Whether our own kernel can train this attention, and beats torch's."""
    if not torch.is_grad_enabled() or not (q_BHTK.requires_grad or k_BGSK.requires_grad or v_BGSK.requires_grad):
        return False
    if torch.compiler.is_compiling() or q_BHTK.device.type != "cpu" or q_BHTK.shape[3] > WIDEST:
        return False
    if max(q_BHTK.shape[2], k_BGSK.shape[2]) > current().kernel:
        return False
    if v_BGSK.shape != k_BGSK.shape or k_BGSK.shape[::3] != q_BHTK.shape[::3]:  # torch says what is wrong
        return False
    if bias.dense is not None and bias.dense.requires_grad:  # T5's positions are learnt
        return False
    return level_of(dropout) is not None and training.kernels_for(q_BHTK, k_BGSK, v_BGSK, bias.dense) is not None


def fused_is_faster(q_BHTK: Tensor, k_BGSK: Tensor, dropout: float) -> bool:
    """Whether torch's fused kernel beats the written-out steps: see kernels/choice.py.

    On CPUs the fused kernel can't drop weights: torch then falls back to steps of its own, with slower random bits.
    """
    if q_BHTK.device.type != "cpu":
        return True
    if dropout > 0.0:
        return False
    if torch.compiler.is_compiling():  # where nothing can be measured
        return True
    half = q_BHTK.dtype in (torch.bfloat16, torch.float16)
    backward = torch.is_grad_enabled() and q_BHTK.requires_grad
    longest = current().half_steps if half and backward else current().steps
    return k_BGSK.shape[2] > longest
