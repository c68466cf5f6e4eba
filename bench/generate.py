"""Writing text beside the peers: `python -m bench.generate`.

Two translators (the paper's shapes tiny and base), greedy and with 5 beams, all sentences at once and one by one; then
GPT-2 (124 M) and a Llama of 110 M, 128 new tokens after a prompt of 32, one and eight at a time.

Every contestant has the same weights and the same token ids. The peers: CTranslate2, called directly, with batches of
tokens as its guide says, in each compute type and with 1 worker × 2 threads and 2 × 1 (or 1 × 1, where it gets one text
at a time); transformers.generate in float32 and bfloat16, on batches sorted by length. CTranslate2's files come from
`cutaway convert --to ctranslate2`: its own converter asks for a tokenizer of transformers, and gives the same layers.
cutaway is called as its users call it.

With --tiny and --base, folders of trained translators (ours, or MarianMT's), --source and --reference, real sentences
are translated and BLEU stands beside the speed; otherwise weights are random and every text is as long as it may be.
"""

import argparse
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

import cutaway
from bench import contest, harness
from bench.data import lengths
from bench.harness import Contestant, Work
from cutaway.engines.ctranslate2_files import write
from cutaway.generation import Generation, Prompt
from cutaway.model import Model
from cutaway.models.build import build
from cutaway.models.config import TransformerConfig
from cutaway.models.presets import llama, preset
from cutaway.models.usage import Usage

PAD, END = 0, 3  # as bench.translator has them
FORCED, LONGEST = 16, 128  # tokens of a text: of random weights, and of trained ones at most
Texts = list[list[int]]
Writer = Callable[[Sequence[list[int]]], Texts]
"""Prompts -> what is written after each, without its end."""


@dataclass(frozen=True)
class Ask:
    """What is asked of every contestant."""

    beams: int
    new_tokens: int
    at_once: int | None = None  # prompts in one call; None: all
    forced: bool = True  # nothing ends a text before it has all its new tokens
    batch_tokens: int = 2048
    counts: str = "sentences"  # or tokens


# Models


def translator(shape: str, quick: bool) -> Model:
    """The preset as MarianMT has it, so that transformers can run it too; random weights, no end."""
    config = preset(f"transformer-{shape}")
    assert isinstance(config, TransformerConfig)
    assert config.encoder is not None
    stack = replace(config.encoder, positions="sinusoidal_halves", max_positions=512)
    stack = replace(stack, vocabulary=500, n_blocks=2) if quick else stack
    head = replace(config.head, bias=True)  # type: ignore[type-var]  # a LanguageModel
    torch.manual_seed(0)
    return Model(
        build(replace(config, encoder=stack, decoder=stack, head=head)).eval(), usage=Usage(start=PAD, pad=PAD)
    )


def language_model(name: str, quick: bool) -> Model:
    config = preset("gpt2") if name == "gpt2" else llama(12, 768, 12, 2048, 32000, 2048, n_kv_heads=4, tied=True)
    assert isinstance(config, TransformerConfig)
    if quick:
        config = replace(config, decoder=replace(config.decoder, vocabulary=500, n_blocks=2))  # type: ignore[type-var]
    torch.manual_seed(0)
    return Model(build(config).eval())


def prepare(model: Model, place: Path, prompts: Texts, references: list[str] | None = None) -> None:
    """Everything that contestants load, in one folder."""
    model.save(place / "cutaway")
    model.save(place / "huggingface", format="huggingface")
    for stored in ("float32", "int8"):
        (place / stored).mkdir()
        write(model.network, model.usage, place / stored, stored)
    (place / "asked.json").write_text(json.dumps({"prompts": prompts, "references": references}))
    (place / "usage.json").write_text(json.dumps(asdict(model.usage)))


# Contestants, each in a process of its own


def _asked(place: Path) -> tuple[Texts, list[str] | None, Usage]:
    asked = json.loads((place / "asked.json").read_text())
    usage = {
        k: tuple(v) if isinstance(v, list) else v for k, v in json.loads((place / "usage.json").read_text()).items()
    }
    return asked["prompts"], asked["references"], Usage(**usage)


def _work(place: Path, ask: Ask, writer: Writer) -> Work:
    """Calls of `at_once` prompts. The first time all is written, the texts are looked at."""
    prompts, references, _ = _asked(place)
    size = ask.at_once or len(prompts)
    calls = [prompts[i : i + size] for i in range(0, len(prompts), size)]
    texts = [text for call in calls for text in writer(call)]
    facts: dict[str, Any] = {
        "tokens": sum(map(len, texts)),
        "texts": [zlib.crc32(json.dumps(text).encode()) for text in texts],
    }
    if references is not None:
        import sacrebleu

        tokenizer = cutaway.load(place / "cutaway").tokenizer
        assert tokenizer is not None
        facts["BLEU"] = sacrebleu.corpus_bleu(tokenizer.decode_many(texts), [references[: len(texts)]]).score

    def step(call: Sequence[list[int]]) -> int:
        found = writer(call)
        return len(found) if ask.counts == "sentences" else sum(map(len, found))

    return Work([lambda call=call: step(call) for call in calls], lambda: None, facts)


def ours(place: Path, ask: Ask, engine: str, precision: str) -> Work:
    os.environ["CUTAWAY_CACHE"] = str(place / "cache")  # nothing is left behind
    torch.set_num_threads(harness.cores())
    runs = cutaway.load(place / "cutaway").engine(engine, precision)
    generation = Generation(
        beams=ask.beams, max_new_tokens=ask.new_tokens, batch_tokens=ask.batch_tokens, scores=False
    )  # fmt: skip

    def written(prompts: Sequence[list[int]]) -> Texts:
        asked = [Prompt(tuple(ids)) for ids in prompts]
        return [list(texts[0].ids) for texts in runs.write(asked, generation)]

    return _work(place, ask, written)


def ctranslate2(place: Path, ask: Ask, compute: str, workers: int, threads: int) -> Work:
    import ctranslate2

    _, _, usage = _asked(place)
    reads = (place / "float32" / "shared_vocabulary.json").exists()
    make = ctranslate2.Translator if reads else ctranslate2.Generator
    runs = make(str(place / compute), compute_type=compute, inter_threads=workers, intra_threads=threads)
    options: dict[str, Any] = {
        "beam_size": ask.beams,
        "max_batch_size": ask.batch_tokens,
        "batch_type": "tokens",
        "suppress_sequences": [[str(token)] for token in usage.never] or None,
    }
    if ask.forced:  # no end: a number that no token has
        options["end_token"] = [len(json.loads((next((place / compute).glob("*vocabulary.json"))).read_text()))]

    def translated(prompts: Sequence[list[int]]) -> Texts:
        source = [[str(i) for i in ids] for ids in prompts]
        found = runs.translate_batch(source, max_decoding_length=ask.new_tokens, min_decoding_length=0, **options)
        return [[int(word) for word in result.hypotheses[0]] for result in found]

    def continued(prompts: Sequence[list[int]]) -> Texts:
        begun = [[str(i) for i in ids] for ids in prompts]
        found = runs.generate_batch(begun, max_length=ask.new_tokens, include_prompt_in_result=False, **options)
        return [list(result.sequences_ids[0]) for result in found]

    return _work(place, ask, translated if reads else continued)


def transformers(place: Path, ask: Ask, precision: str) -> Work:
    import transformers as hf

    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    torch.set_num_threads(harness.cores())
    _, _, usage = _asked(place)
    reads = cutaway.load(place / "cutaway").network.has_encoder
    kind = hf.AutoModelForSeq2SeqLM if reads else hf.AutoModelForCausalLM
    model = kind.from_pretrained(place / "huggingface", dtype=getattr(torch, precision)).eval()
    model.generation_config = hf.GenerationConfig()
    end = list(usage.end) or None
    config = hf.GenerationConfig(
        num_beams=ask.beams, max_new_tokens=ask.new_tokens, do_sample=False, eos_token_id=end, pad_token_id=PAD,
        decoder_start_token_id=usage.start, bad_words_ids=[[token] for token in usage.never] or None,
    )  # fmt: skip

    def written(prompts: Sequence[list[int]]) -> Texts:
        found: dict[int, list[int]] = {}
        for rows in _batches(prompts, ask.batch_tokens):
            n = max(len(prompts[i]) for i in rows)
            ids, mask = torch.full((len(rows), n), PAD), torch.zeros(len(rows), n, dtype=torch.long)
            for row, i in enumerate(rows):
                ids[row, : len(prompts[i])] = torch.tensor(prompts[i])
                mask[row, : len(prompts[i])] = 1
            with torch.inference_mode():
                out = model.generate(ids, attention_mask=mask, generation_config=config)
            for i, text in zip(rows, out[:, 1 if reads else n :].tolist(), strict=True):
                ends = [place for place, token in enumerate(text) if token in usage.end]
                found[i] = text[: ends[0]] if ends else text
        return [found[i] for i in range(len(prompts))]

    return _work(place, ask, written)


def _batches(prompts: Sequence[list[int]], n_tokens: int) -> Iterator[list[int]]:
    """Of like length, padded to at most `n_tokens`."""
    rows: list[int] = []
    for i in sorted(range(len(prompts)), key=lambda i: len(prompts[i])):
        if rows and (len(rows) + 1) * len(prompts[i]) > n_tokens:
            yield rows
            rows = []
        rows.append(i)
    yield rows


def field(place: Path, ask: Ask) -> list[Contestant]:
    cores = harness.cores()
    threads = list(dict.fromkeys([(1, cores), (cores, 1) if ask.at_once is None else (1, 1)]))
    return [
        *(
            Contestant(f"cutaway {engine} {precision}", ours, (place, ask, engine, precision))
            for engine, precision in (
                ("native", "float32"), ("native", "bfloat16"), ("native", "int8"),
                ("ctranslate2", "float32"), ("ctranslate2", "int8"),
            )
        ),
        *(
            Contestant(f"CTranslate2 {compute} {workers}×{each}", ctranslate2, (place, ask, compute, workers, each))
            for compute, (workers, each) in product(("float32", "int8"), threads)
        ),
        *(
            Contestant(f"transformers {precision}", transformers, (place, ask, precision))
            for precision in ("float32", "bfloat16")
        ),
    ]  # fmt: skip


# Tables


def add_table(report: Any, options: argparse.Namespace, title: str, place: Path, ask: Ask) -> None:
    results = contest.compete(options, field(place, ask))
    first = next((result.facts["texts"] for result in results if "texts" in result.facts), [])
    for result in results:
        if texts := result.facts.pop("texts", None):
            result.facts["same"] = sum(a == b for a, b in zip(texts, first, strict=True)) / len(texts)
    facts = {"BLEU": "{:.2f}"} if any("BLEU" in result.facts for result in results) else {}
    unit = "sent/s" if ask.counts == "sentences" else "tok/s"
    note = f"same: share of texts that equal the first contestant's; {len(first)} texts"
    report.add(contest.table(title, unit, results, {**facts, "same": "{:.0%}", "tokens": "{}"}, [note]))


def translations(report: Any, options: argparse.Namespace, shape: str) -> None:
    folder: Path | None = getattr(options, shape)
    n = 12 if options.quick else options.sentences
    references = None
    if folder is not None:
        model = cutaway.load(folder)
        if options.source is None or options.reference is None or model.tokenizer is None:
            raise SystemExit("a trained model needs its tokenizer, --source FILE and --reference FILE")
        sources, references = (
            path.read_text(encoding="utf-8").splitlines()[:n] for path in (options.source, options.reference)
        )
        prompts = model.tokenizer.encode_ids(sources)
    else:
        model = translator(shape, options.quick)
        generator = torch.Generator().manual_seed(0)
        vocabulary = model.config.encoder.vocabulary  # type: ignore[union-attr]
        prompts = [
            torch.randint(1, vocabulary, (int(length),), generator=generator).tolist()
            for length in lengths(n, generator)[0]
        ]
    plain = Ask(1, FORCED if folder is None else LONGEST, forced=folder is None, batch_tokens=options.batch_tokens)
    one = prompts[: 3 if options.quick else options.singles]
    for name, asked, ask in (("all at once", prompts, plain), ("one by one", one, replace(plain, at_once=1))):
        with tempfile.TemporaryDirectory() as place:
            prepare(model, Path(place), asked, references)
            for search, beams in (("greedy", 1), ("5 beams", 5)):
                title = f"translator, {shape}{'' if folder else ' (random weights)'}, {search}, {name}"
                add_table(report, options, title, Path(place), replace(ask, beams=beams))


def continuations(report: Any, options: argparse.Namespace, name: str) -> None:
    model = language_model(name, options.quick)
    vocabulary = model.config.decoder.vocabulary  # type: ignore[union-attr]
    prompts = torch.randint(1, vocabulary, (8, 32), generator=torch.Generator().manual_seed(0)).tolist()
    new = 8 if options.quick else 128
    for n in (1, 8):
        with tempfile.TemporaryDirectory() as place:
            prepare(model, Path(place), prompts[:n])
            ask = Ask(1, new, at_once=n, counts="tokens", batch_tokens=options.batch_tokens)
            add_table(report, options, f"{name}, {new} new tokens, {n} at a time", Path(place), ask)


MODELS = ("tiny", "base", "gpt2", "llama")


def main() -> None:
    parser = contest.parser("generate", __doc__)
    parser.add_argument("--model", action="append", choices=MODELS, help="once or more; default: all")
    parser.add_argument("--tiny", type=Path, metavar="FOLDER", help="a trained translator of that shape")
    parser.add_argument("--base", type=Path, metavar="FOLDER", help="a trained translator of that shape")
    parser.add_argument("--source", type=Path, metavar="FILE", help="sentences, one a line")
    parser.add_argument("--reference", type=Path, metavar="FILE", help="their translations")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--singles", type=int, default=50, help="sentences that are translated one by one")
    parser.add_argument("--batch-tokens", type=int, default=2048, help="of sources, in one batch of any contestant")
    options = parser.parse_args()
    report = contest.report(options)
    for name in options.model or MODELS:
        (translations if name in ("tiny", "base") else continuations)(report, options, name)


if __name__ == "__main__":
    main()
