"""Test that a GGUF file is served as it is: its tensors under the modules' names, transformers' own
logits from its blocks, and a sentence for a file that cannot be read.
"""

import os
import tempfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from app.config import Settings
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.load import load
from app.engine.profile.profiler import check_exactness
from app.engine.weights.blocks import Blocks, dense
from app.engine.weights.gguf import describe
from app.engine.weights.gguf_file import types
from app.engine.weights.gguf_header import WholeReader, opened
from app.engine.weights.hf_reader import build_in_turn, read
from app.engine.weights.resolve import GGUF, check_folder, resolve
from app.engine.weights.rounding import round_linear
from app.engine.weights.tensors import Stored
from app.errors import ModelRefused
from kernels.cpu import shapes
from kernels.cpu.products.row_blocks import ROUNDED
from tests import fakes
from tests.app.engine.weights.ggufs import as_tensor, write

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
EXAMPLES = 40 * int(os.environ.get("PACELINE_FUZZ", "5"))
IN_K = (  # a weight each of a model of two layers, as llama.cpp mixes them
    *("Q8_0", "Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q4_K", "Q6_K"),
    *("Q5_K", "Q5_K", "Q8_0", "Q5_K", "Q5_K", "Q5_K", "Q4_K", "Q6_K"),
)
MIXED = ("Q8_0", "Q4_1", "BF16", "Q5_0", "Q4_0", "Q5_1", "F16", "F32")


def silent(text: str) -> None:
    pass


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def described(file: Path, folder: Path) -> Path:
    """Make the folder that `resolve` makes of a file, without a process that loads transformers again."""
    folder.mkdir()
    (folder / GGUF).symlink_to(file)
    describe(folder / GGUF, folder)
    check_folder(folder)
    return folder


@pytest.mark.parametrize("kinds", [("F32",), ("Q8_0",), MIXED])
def test_weights_have_the_modules_names_and_order(family: str, kinds: tuple[str, ...], tmp_path: Path) -> None:
    meant = write(fakes.tiny(family), tmp_path / GGUF, kinds)
    stored = Stored(tmp_path)
    assert set(stored) == set(meant)
    for name, values in meant.items():
        assert torch.equal(dense(stored[name]), as_tensor(values)), name
    assert any(isinstance(stored[name], Blocks) for name in stored) == (kinds != ("F32",))


@pytest.mark.parametrize("kinds", [("Q8_0",), MIXED])
def test_a_file_gives_the_logits_of_transformers_own_reading(
    family: str, kinds: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "tiny.gguf"
    write(fakes.tiny(family), file, kinds)
    folder = described(file, tmp_path / "folder")
    forward, again = (load(folder, "stored", tmp_path / "home") for _ in range(2))
    assert isinstance(forward, FusedForward) and isinstance(again, FusedForward)
    ids = list(range(3, 33))
    if not {"Q5_0", "Q5_1"} & set(kinds):  # which transformers' reader does not know
        config = AutoConfig.from_pretrained(folder)  # their reader of the header drops the heads' size
        theirs = AutoModelForCausalLM.from_pretrained(folder, config=config, gguf_file=GGUF, dtype=torch.float32)
        torch.testing.assert_close(last_row(again, ids), theirs(torch.tensor([ids])).logits[0, -1].detach())
    whole = load(folder, "float32")
    torch.testing.assert_close(last_row(forward, ids), last_row(whole, ids), rtol=1e-4, atol=1e-4)
    ours = read(folder)(torch.tensor([ids])).logits[0, -1].detach()
    torch.testing.assert_close(last_row(again, ids), ours, rtol=1e-4, atol=1e-4)


@pytest.mark.extended  # compiles for a minute
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_k_types_are_multiplied_as_integers_with_exact_rows(family: str, tmp_path: Path) -> None:
    file, home = tmp_path / "tiny.gguf", tmp_path / "home"
    write(fakes.tiny(family, hidden_size=256, intermediate_size=512), file, IN_K)
    folder = resolve(str(file), home, silent)
    assert {"Q4_K", "Q5_K", "Q6_K", "Q8_0"} <= types(folder / GGUF)
    exact = load(folder, "stored", home)
    rounded, again = (load(folder, "stored", home, "int8") for _ in range(2))
    assert isinstance(exact, FusedForward) and isinstance(rounded, FusedForward) and isinstance(again, FusedForward)
    model = vars(rounded)["_model"]
    forms = {model.head_form, *(form for slot in shapes.WEIGHTS for form in model.layers[:, slot + 2])}
    assert forms == {ROUNDED}, "none in float32"
    ids = list(range(3, 60))
    rows = [last_row(forward, ids) for forward in (exact, rounded, again)]
    assert torch.equal(rows[1], rows[2])
    assert 0.0 < (rows[0] - rows[1]).abs().max() < 0.5 * rows[0].std()
    assert check_exactness(fakes.runner(rounded), fakes.VOCAB).different == 0


@pytest.mark.parametrize("rows", [1, 7, 12, 33, 64])
def test_any_number_of_rows_is_expanded_and_rounded_as_gguf_does(rows: int) -> None:
    whole = torch.randn(rows, 512, generator=torch.Generator().manual_seed(rows))
    kind = gguf.GGMLQuantizationType.Q4_0
    expected = gguf.quants.quantize(whole.numpy(), kind)
    rounded = round_linear(whole, "q4_0")
    assert isinstance(rounded, Blocks) and (rounded.rows == expected).all()
    assert (dense(rounded).numpy() == gguf.quants.dequantize(expected, kind)).all()


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    model = fakes.tiny(tie_word_embeddings=True)
    state = {name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    model.state_dict = lambda: state  # type: ignore[assignment,method-assign]
    write(model, tmp_path / GGUF, ("Q8_0",))
    stored = Stored(tmp_path)
    assert stored.is_head_tied
    assert torch.equal(dense(stored["lm_head.weight"]), dense(stored["model.embed_tokens.weight"]))


def test_a_changed_file_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write(fakes.tiny(), file, ("Q8_0",))
    first = resolve(str(file), tmp_path / "home", silent)
    assert resolve(str(file), tmp_path / "home", silent) == first
    assert Settings(model=str(first)).model_name == "tiny", "by which clients call it, once `up` names the folder"
    file.unlink()
    write(fakes.tiny(seed=1), file, ("F16",))
    assert resolve(str(file), tmp_path / "home", silent) != first


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"split__count": 2}, "one of several parts"),
        ({"llama__expert_count": 8}, "is a mixture of experts; supported are dense models"),
    ],
)
def test_a_file_that_is_not_read_whole_is_refused(fields: dict[str, object], message: str, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write(fakes.tiny(), file, ("Q8_0",), **fields)
    with pytest.raises(ModelRefused, match=message):
        described(file, tmp_path / "folder")


def test_a_refused_file_gets_no_folder(tmp_path: Path) -> None:
    """It is refused last of all, when its configuration is written."""
    file = tmp_path / "tiny.gguf"
    write(fakes.tiny(), file, ("Q8_0",), pre="default")
    with pytest.raises(ModelRefused, match="splits text by the rule 'default'"):
        resolve(str(file), tmp_path / "home", silent)
    assert not [*(tmp_path / "home" / "models").glob("*/tiny")]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("smollm", ["a", "ĠĠĠ", "1", "2", "Ġb"]),
        ("gpt-2", ["a", "ĠĠ", "Ġ12", "Ġb"]),
        ("llama-bpe", ["a", "ĠĠ", "Ġ", "12", "Ġb"]),
        ("qwen2", ["a", "ĠĠ", "Ġ", "1", "2", "Ġb"]),
    ],
)
def test_text_is_split_by_the_rule_that_the_file_names(rule: str, words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write(fakes.tiny(), file, ("Q8_0",), pre=rule)
    folder = described(file, tmp_path / "folder")
    split = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).pre_tokenizer
    assert [word for word, _ in split.pre_tokenize_str("a   12 b")] == words


@pytest.mark.parametrize(
    ("keep", "why"),
    [
        (0, "it does not begin as one"),
        (3, "it does not begin as one"),
        (40, "its header is damaged or cut short"),
        (900, "goes beyond the end of the file"),
        (-200, "it is cut short: [0-9]+ bytes of [0-9]+"),
    ],
)
def test_a_file_cut_off_is_refused_in_a_sentence(keep: int, why: str, tmp_path: Path) -> None:
    file = tmp_path / GGUF
    write(fakes.tiny(), file, ("Q8_0",))
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelRefused, match=f"{GGUF} is not a whole GGUF file: .*{why}"):
        Stored(tmp_path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sound") / GGUF
    write(fakes.tiny(), file, MIXED)
    return file


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    place=st.floats(0.0, 1.0),
    odd=st.sampled_from([0, 1, 2, 7, 8, 9, 12, 127, 128, 255]),
    many=st.sampled_from([1, 4, 8]),
)
def test_a_damaged_file_is_read_or_refused_in_a_sentence(sound: Path, place: float, odd: int, many: int) -> None:
    """Write a byte, a few times, anywhere before the tensors' data: counts, lengths, types, offsets, names."""
    whole = sound.read_bytes()
    start = int(place * (whole.rindex(b".weight") + 64))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / GGUF).write_bytes(whole[:start] + bytes([odd]) * many + whole[start + many :])
        try:
            stored = Stored(Path(folder))
            with np.errstate(all="ignore"):  # of numbers that are none
                for name in stored:
                    dense(stored[name])
        except ModelRefused as error:
            assert GGUF in str(error) or "GGUF" in str(error)


def test_a_tensor_that_claims_another_type_is_refused_by_name(sound: Path, tmp_path: Path) -> None:
    whole = bytearray(sound.read_bytes())
    name = b"blk.0.attn_q.weight"
    kind = whole.index(name) + len(name) + 4 + 2 * 8  # behind the name: dimensions, type, offset
    whole[kind] = gguf.GGMLQuantizationType.F32
    (tmp_path / GGUF).write_bytes(whole)
    with pytest.raises(ModelRefused, match=r"blk\.0\.attn_q\.weight is F32 and overlaps"):
        Stored(tmp_path)


def test_lists_are_left_unread_and_tensors_found_where_the_library_finds_them(tmp_path: Path) -> None:
    file = tmp_path / GGUF
    write(fakes.tiny(), file, MIXED)
    ours, theirs = opened(file), gguf.gguf_reader.GGUFReader(file)
    assert [(t.name, t.data_offset, t.tensor_type) for t in ours.tensors] == [
        (t.name, t.data_offset, t.tensor_type) for t in theirs.tensors
    ]
    assert not ours.fields["tokenizer.ggml.tokens"].parts[4:] and theirs.fields["tokenizer.ggml.tokens"].parts[4:]


def test_lists_that_are_read_whole_have_the_elements_that_the_library_reads(tmp_path: Path) -> None:
    file = tmp_path / GGUF
    write(fakes.tiny(), file, MIXED)
    ours, theirs = WholeReader(file).fields, gguf.gguf_reader.GGUFReader(file).fields
    assert list(ours) == list(theirs)
    for name, field in theirs.items():
        assert ours[name].types == field.types
        values = [[list(one.parts[i]) for i in one.data] for one in (ours[name], field)]
        assert values[0] == values[1], name


def test_modules_that_read_in_turn_say_the_same_and_hold_nothing(family: str, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write(fakes.tiny(family), file, MIXED)
    folder = described(file, tmp_path / "folder")
    ids = torch.tensor([list(range(3, 33))])
    model = build_in_turn(folder, Stored(folder)).eval()
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, read(folder).eval()(ids).logits)
    assert all(weight.device.type == "meta" for weight in model.parameters())


def last_row(forward: FusedForward, ids: list[int]) -> torch.Tensor:
    """Return the logits of a text's last row."""
    runner = fakes.runner(forward)
    work = fakes.work(fakes.cached(ids), 0)
    assert runner.try_reserve(work)
    return runner.forward([work])[0].rows[0]
