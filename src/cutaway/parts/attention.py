"""Scaled dot-product and multi-head attention (§3.2): one class for every use of it.

Queries come from `x`; keys and values from `memory`, which is `x` itself in self-attention. Masked, cross,
grouped-query, rotary and T5 attention are arguments, not subclasses.
"""

from torch import Tensor, nn

from cutaway.checks import Probability, Size, check_arguments
from cutaway.errors import ConfigError, InputError
from cutaway.kernels.attention import attention
from cutaway.kernels.dropout import dropout
from cutaway.parts.kv_cache import KV, KVCache
from cutaway.parts.masks import NO_BIAS, Bias
from cutaway.parts.norms import upcast
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

    Keys and values come from x itself, or from a memory [B, S, D].

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
        """`cross`: made for a memory; names the formulas, and engines and switches read it. `position_bias` (T5's)
        names a formula only."""
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
        added = "position bias, and -∞ where masked" if position_bias else "bias: -∞ where masked"
        self.masked_scores = Tap("BHTS", f"scaled_scores + {added}")
        self.weights = Tap("BHTS", "softmax(masked_scores) over the keys")
        self.internal_taps = (self.scores, self.scaled_scores, self.masked_scores, self.weights)
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
        kv_cache: KVCache | None = None,
    ) -> Tensor:
        """`memory` None: self-attention. The cache keeps keys and values: x's are appended, memory's made once.

        Neighbouring rows of x may share a row of the memory, as the beams of one text do.
        """
        self._check(x_BTD, memory_BSD)
        if (rotation is not None) != self.rotary:
            raise InputError("a rotation belongs to an attention made with rotary=True, and only to one")
        kv = None if memory_BSD is None or kv_cache is None else kv_cache.filled
        if kv is None:
            q_BTE, k_BSE, v_BSE = self.project(x_BTD, x_BTD if memory_BSD is None else memory_BSD)
        else:
            q_BTE = self.q(x_BTD)
        q_BHTK = self.queries(split_heads(q_BTE, self.n_heads))
        if rotation is not None:
            q_BHTK = self.rotated_queries(rotation.rotate(q_BHTK))
        if kv is None:
            k_BGSK = self.keys(split_heads(k_BSE, self.n_kv_heads))
            v_BGSK = self.values(split_heads(v_BSE, self.n_kv_heads))
            if rotation is not None:
                k_BGSK = self.rotated_keys(rotation.rotate(k_BGSK))
            kv = KV(k_BGSK, v_BGSK) if kv_cache is None else kv_cache.append(k_BGSK, v_BGSK)
        heads_BHTK = self.heads(self.attend(q_BHTK, kv, bias))
        return self.output(self.out(self.concatenated(merge_heads(heads_BHTK))))

    def project(self, x_BTD: Tensor, source_BSD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q = x W_Q, k = source W_K, v = source W_V"""
        return self.q(x_BTD), self.k(source_BSD), self.v(source_BSD)

    def attend(self, q_BHTK: Tensor, kv: KV, bias: Bias = NO_BIAS) -> Tensor:
        """softmax(q kᵀ · scale + bias) v: by a kernel where that is faster and no tap is heard, else step by step. The
        contract tests hold the two equal."""
        p = self.dropout if self.training else 0.0
        if not heard(*self.internal_taps) and (heads_BHTK := self.kernel(q_BHTK, kv, bias, p)) is not None:
            return heads_BHTK
        k_BGSK, v_BGSK = kv.repeated(len(q_BHTK))
        bias_BHTS = bias.repeated(len(q_BHTK))
        scores_BHTS = self.scores(_grouped(q_BHTK, k_BGSK.mT))
        scaled_BHTS = self.scaled_scores(scores_BHTS * self.scale if self.scale != 1.0 else scores_BHTS)
        masked_BHTS = self.masked_scores(scaled_BHTS if bias_BHTS is None else scaled_BHTS + bias_BHTS)
        weights_BHTS = self.weights(upcast(masked_BHTS).softmax(-1).to(v_BGSK.dtype))
        return _grouped(dropout(weights_BHTS, p), v_BGSK)

    def kernel(self, q_BHTK: Tensor, kv: KV, bias: Bias, p: float) -> Tensor | None:
        """attend() in one go; None where the steps are faster."""
        k_BGSK, v_BGSK = kv.dense()
        return attention(
            q_BHTK, k_BGSK, v_BGSK, bias.dense, self.scale, causal=bias.causal, dropout=p, learns=self.training
        )

    def _check(self, x_BTD: Tensor, memory_BSD: Tensor | None) -> None:
        """Vectors as wide as this attention's, and a memory for each row."""
        D = self.q.in_features
        for what, value in (("x", x_BTD), ("memory", memory_BSD)):
            if value is not None and (value.dim() != 3 or value.shape[-1] != D):
                raise InputError(f"{what} has shape {list(value.shape)}; this attention takes [batch, length, {D}]")
        if memory_BSD is not None and len(x_BTD) % max(1, len(memory_BSD)):
            raise InputError(f"x has {len(x_BTD)} rows, but the memory has {len(memory_BSD)}; give as many")


def _grouped(a_BHTX: Tensor, b_BGXY: Tensor) -> Tensor:
    """a @ b where each of b's G heads serves H/G neighbouring heads of a; no copy of b is made."""
    (B, H, T, X), G = a_BHTX.shape, b_BGXY.shape[1]
    if H == G:
        return a_BHTX @ b_BGXY
    return (a_BHTX.reshape(B, G, H // G * T, X) @ b_BGXY).view(B, H, T, -1)
