"""Settings of a generation_config.json, each with several values, and how a folder that asks for one is compared with
transformers: `generate` there, a task's own search here, with nothing said but by the folder."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers as hf

import cutaway
from cutaway.decoding.plan import Plan
from cutaway.decoding.processors import process_logits
from cutaway.decoding.sample import warp_logits
from cutaway.decoding.search import write
from cutaway.decoding.state import DecodingState
from cutaway.generation import Generation, Prompt
from cutaway.model import Model
from cutaway.tasks.options import to_generation
from tests.support.peers import Peer, V, make_peer

Settings = Mapping[str, Any]

MODELS = [
    ("marian", 0), ("marian", 1), ("marian", 2), ("t5", 0), ("t5", 1), ("flan-t5", 0), ("flan-t5", 1), ("gpt2", 0),
    ("gpt2", 1), ("gpt2", 2), ("llama", 0), ("llama", 1), ("mistral", 0), ("qwen2", 0), ("qwen2", 1),
]  # fmt: skip
N_ENDS = {("llama", 0): 2, ("t5", 1): 2, ("qwen2", 1): 3}
LONGEST = 12  # tokens of a text, where nothing else is said

SEARCH: dict[str, list[Settings]] = {
    "repetition_penalty": [{"repetition_penalty": value} for value in (0.7, 1.3, 2.5)],
    "no_repeat_ngram_size": [{"no_repeat_ngram_size": n} for n in (1, 2, 3)],
    "max_new_tokens": [{"max_new_tokens": n} for n in (1, 5, 9)],
    "max_length": [{"max_length": n, "max_new_tokens": None} for n in (8, 11)],
    "max_new_tokens goes before max_length": [{"max_length": 9, "max_new_tokens": 7}],
    "min_length": [{"min_length": n} for n in (6, 10, 40)],
    "min_new_tokens": [{"min_new_tokens": n} for n in (3, 8)],
    "min_new_tokens goes before min_length": [{"min_new_tokens": 2, "min_length": 11}],
    "forced_bos_token_id": [{"forced_bos_token_id": token} for token in (7, 20)],
    "forced_eos_token_id": [{"forced_eos_token_id": token} for token in (9, [9])],
    "suppress_tokens": [{"suppress_tokens": list(range(first, 55, 2))} for first in (3, 4)],
    "begin_suppress_tokens": [{"begin_suppress_tokens": list(range(first, 55, 2))} for first in (3, 4)],
    "begin_suppress_tokens after forced_bos_token_id": [
        {"begin_suppress_tokens": list(range(3, 55, 2)), "forced_bos_token_id": 8}
    ],
    "bad_words_ids": [
        {"bad_words_ids": [[token] for token in range(3, 50, 2)]},
        {"bad_words_ids": [[first, second] for first in range(3, 59) for second in range(first % 9 + 3, 58, 9)]},
        {"bad_words_ids": [[3, 4, 5], [6], *([first, first] for first in range(59))]},
    ],
    "encoder_repetition_penalty": [{"encoder_repetition_penalty": value} for value in (0.4, 1.5, 4.0)],
    "encoder_no_repeat_ngram_size": [{"encoder_no_repeat_ngram_size": n} for n in (1, 2)],
    "exponential_decay_length_penalty": [
        {"exponential_decay_length_penalty": value} for value in ([2, 1.3], [0, 1.9], [3, 0.5])
    ],
    "sequence_bias": [
        {"sequence_bias": [[[token], 6.0 - token % 5 * 3] for token in range(3, 59)]},
        {"sequence_bias": [[[a, b], 9.0] for a in range(59) for b in (a // 2, (a + 7) % 59)]},
    ],
    "remove_invalid_values": [
        {"remove_invalid_values": True, "exponential_decay_length_penalty": [1, 1.8], "min_length": 10}
    ],
    "renormalize_logits": [
        {"renormalize_logits": True, "suppress_tokens": list(range(3, 40)), "repetition_penalty": 1.5}
    ],
    "length_penalty": [{"length_penalty": value} for value in (-2.0, 0.0, 0.5, 3.0)],
    "early_stopping": [
        {"early_stopping": True}, {"early_stopping": "never"}, {"early_stopping": "never", "length_penalty": 2.0},
        {"early_stopping": True, "length_penalty": -1.0},
    ],
    "sampling that is not asked for": [{"temperature": 0.3, "top_k": 3, "top_p": 0.5, "min_p": 0.1}],
    "temperature 0 in place of do_sample": [{"temperature": 0.0}],
    "all together": [
        {
            "repetition_penalty": 1.2, "encoder_repetition_penalty": 1.4, "no_repeat_ngram_size": 3,
            "encoder_no_repeat_ngram_size": 2, "bad_words_ids": [[8], [9, 10]], "min_length": 9,
            "forced_bos_token_id": 7, "forced_eos_token_id": 5, "remove_invalid_values": True,
            "exponential_decay_length_penalty": [6, 1.1], "suppress_tokens": [11, 12, 13],
            "begin_suppress_tokens": [20, 21], "sequence_bias": [[[14], -4.0], [[15, 16], 3.0]],
            "renormalize_logits": True,
        }
    ],
}  # fmt: skip
"""What is compared in greedy search and with beams."""

BEAMS_ONLY = frozenset({"renormalize_logits", "length_penalty", "early_stopping"})
GREEDY_ONLY = frozenset({"remove_invalid_values"})  # with beams the infinite score of an end would never leave a beam
CHANGE_NOTHING = frozenset({"sampling that is not asked for", "temperature 0 in place of do_sample"})

SAMPLING: dict[str, list[Settings]] = {
    "do_sample": [{}],
    "temperature": [{"temperature": value} for value in (0.3, 0.7, 3.0)],
    "top_k": [{"top_k": k} for k in (0, 1, 5, 200)],
    "top_p": [{"top_p": value} for value in (0.0, 0.5, 0.95, 1.0)],
    "min_p": [{"min_p": value} for value in (0.0, 0.02, 0.5)],
    "top_h": [{"top_h": value} for value in (0.3, 0.9)],
    "typical_p": [{"typical_p": value} for value in (0.2, 0.9, 1.0)],
    "epsilon_cutoff": [{"epsilon_cutoff": value} for value in (0.001, 0.05)],
    "eta_cutoff": [{"eta_cutoff": value} for value in (0.001, 0.2)],
    "renormalize_logits": [{"renormalize_logits": True, "top_p": 0.8}],
    "all together": [
        {
            "temperature": 2.0, "top_k": 30, "top_p": 0.98, "min_p": 0.001, "typical_p": 0.97, "top_h": 0.98,
            "epsilon_cutoff": 0.0003, "eta_cutoff": 0.0002, "repetition_penalty": 1.3, "suppress_tokens": [5, 6],
            "begin_suppress_tokens": [7], "min_new_tokens": 3,
        }
    ],
}  # fmt: skip
"""Beside do_sample; what is compared is the distribution that is drawn from."""


class Folder:
    """One random model as a folder, whose generation_config.json can be written anew."""

    def __init__(self, name: str, seed: int, path: Path) -> None:
        self.peer: Peer = make_peer(name, path, N_ENDS.get((name, seed), 1), seed)
        self.path = path
        self.plain = json.loads((path / "generation_config.json").read_text())
        self.prompts = self._own_words(seed)
        self.settled: dict[str, list[list[int]]] = {}

    def _own_words(self, seed: int) -> list[list[int]]:
        """Prompts of what this model likes to write, so that it would repeat them."""
        torch.manual_seed(seed)
        prompts = torch.randint(3, V - 1, (4, 5))
        found = self.peer.generate(
            prompts.tolist(),
            do_sample=True,
            min_new_tokens=6,
            max_new_tokens=6,
            forced_eos_token_id=None,
            bad_words_ids=[[0], [V - 1]],
        ).sequences
        return found[:, -6:].tolist()

    def plain_texts(self, settings: Settings) -> list[list[int]]:
        """What ours writes without the setting that is compared."""
        key = json.dumps(settings)
        if key not in self.settled:
            self.settled[key] = self.texts(settings)[0]
        return self.settled[key]

    def asking_for(self, settings: Settings) -> Model:
        """Both read the folder again."""
        said = {**self.plain, "max_new_tokens": LONGEST, **settings}
        if self.peer.theirs.config.model_type == "marian":  # all that are published ban their padding so
            said["bad_words_ids"] = [*said.get("bad_words_ids", []), [V - 1]]
        if "suppress_tokens" in said:  # a token that is forced can't be suppressed, in transformers neither
            said["suppress_tokens"] = [
                token for token in said["suppress_tokens"] if token != said.get("forced_eos_token_id")
            ]
        (self.path / "generation_config.json").write_text(json.dumps(said))
        self.peer.theirs.generation_config = hf.GenerationConfig.from_pretrained(self.path)
        return cutaway.load(self.path)

    def texts(self, settings: Settings) -> tuple[list[list[int]], list[list[int]]]:
        """What both write, ends and padding left out."""
        model = self.asking_for(settings)
        search = to_generation({}, model.usage.generation, None)  # type: ignore[arg-type]  # no words, no tokenizer
        written = write(model.network, [Prompt(tuple(ids)) for ids in self.prompts], search, model.usage)
        ours = [[*text.ids, *([] if text.end is None else [text.end])] for [text] in written]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a min_length above max_length
            found = self.peer.generate(self.prompts).sequences[:, 1 if self.peer.reads else len(self.prompts[0]) :]
        theirs = [row[: len(text)] for row, text in zip(found.tolist(), ours, strict=True)]
        rest = {token for row, text in zip(found.tolist(), ours, strict=True) for token in row[len(text) :]}
        assert rest <= {model.usage.pad, *model.usage.end}
        return ours, theirs

    def distributions(self, settings: Settings, n_steps: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
        """The probabilities [step, prompt, token] from which both would draw after each token that theirs has drawn."""
        model = self.asking_for({"do_sample": True, "min_new_tokens": n_steps, **settings})
        torch.manual_seed(0)
        found = self.peer.generate(self.prompts)
        drawn = found.sequences[:, 1 if self.peer.reads else len(self.prompts[0]) :].tolist()
        search = to_generation({}, model.usage.generation, None)  # type: ignore[arg-type]
        assert search.sample
        ours = [
            [self._next(model, search, ids, tuple(row[:step])) for ids, row in zip(self.prompts, drawn, strict=True)]
            for step in range(n_steps)
        ]
        theirs = torch.stack(found.scores[:n_steps]).softmax(-1)
        return torch.stack([torch.stack(rows) for rows in ours]), theirs

    def _next(self, model: Model, search: Generation, ids: list[int], before: tuple[int, ...]) -> torch.Tensor:
        plan = Plan(model.network, Generation(**(vars(search) | {"prefix": before})), model.usage)
        with torch.inference_mode():
            state = DecodingState(plan, [plan.request(0, Prompt(tuple(ids)))])
            return warp_logits(process_logits(state, state.read()), search)[0].softmax(-1)


def searches(name: str) -> list[dict[str, Any]]:
    """How the settings of a name are compared: greedily and with beams, or with two numbers of beams."""
    if name in BEAMS_ONLY:
        return [{"num_beams": 3}, {"num_beams": 4}]
    return [{}] if name in GREEDY_ONLY else [{}, {"num_beams": 3}]
