"""The benchmark measures what it says; how fast anything is, no test asks."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.testing import assert_close

from tests.running import REPOSITORY, call
from vit.data import Augmentation, ImageData, ImageSet, Split
from vit.evaluation.cost import Operand, RecordProducts, forward_flops, parameter_count
from vit.evaluation.timing import Timing, take_turns
from vit.runs import contenders as contenders_module
from vit.runs.benchmark import Stopwatch, benchmark, default_share, growth_points
from vit.runs.contenders import OWN, Contender, Runner, ceiling, compare, contenders, prepare, runner, to_compile
from vit.runs.peers import PEERS, Architecture, this_vit, torchvision_loader
from vit.settings import BenchmarkSettings, UserError
from vit.training.precision import Device

pytestmark = pytest.mark.filterwarnings("default")  # other libraries' are not ours to mend
SMALL = Architecture(dim=32, depth=2, heads=4, patch_size=8, mlp_ratio=2, image_size=32)
CPU = Device("cpu", "32-true", "a test", native_bf16=False)
# Of which the keys are promised to whoever reads the file.
PROMISED = {
    "training": {"images_per_second", "ratio_to_best_peer", "ratio_to_timm_as_installed", "fraction_of_ceiling"},
    "inference": {"ratio_to_best_peer"},
    "data": {"ratio_to_torchvision"},
    "end_to_end": {"fraction_of_bare_step"},
    "attention_logging": {"share"},
    "memory": {"ratio_to_timm"},
    "machine": {"hardware"},
    "versions": {"torch", "timm"},
    "settings": set(BenchmarkSettings.names()),
}


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("explicit", [False, True])
def test_a_peer_has_the_same_parameters_up_to_what_is_explained(name: str, explicit: bool) -> None:
    pytest.importorskip(PEERS[name].package.replace("-", "_"))
    peer = PEERS[name].build(SMALL, explicit)
    own = this_vit(SMALL, pool="cls" if PEERS[name].class_token else "mean")
    learned_position = (SMALL.patches + PEERS[name].class_token) * SMALL.dim  # ours is fixed
    norms_of_patches = 2 * 3 * SMALL.patch_size**2 + 2 * SMALL.dim
    no_qkv_bias, no_proj_bias = -3 * SMALL.dim * SMALL.depth, -SMALL.dim * SMALL.depth
    explained = {
        "vit-pytorch ViT": learned_position + norms_of_patches + no_qkv_bias,
        "vit-pytorch SimpleViT": norms_of_patches + no_qkv_bias + no_proj_bias,
    }.get(name, learned_position)
    assert parameter_count(peer) == parameter_count(own) + explained


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("explicit", [False, True])
def test_a_peer_has_as_many_tokens_as_what_it_is_compared_with(name: str, explicit: bool) -> None:
    pytest.importorskip(PEERS[name].package.replace("-", "_"))
    (row,) = [
        row
        for row in contenders(SMALL, quick=False)
        if row.name == name and row.variant == ("explicit" if explicit else "as installed")
    ] or [None]
    if row is None:
        assert explicit
        assert PEERS[name].always_explicit
        return
    seen: set[int] = set()

    def note(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.add(inputs[0].shape[1])

    peer = row.build().eval()
    for module in peer.modules():
        if isinstance(module, torch.nn.GELU) or type(module).__name__ == "GELUActivation":
            module.register_forward_hook(note)
    assert peer(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert seen == {row.tokens}
    assert any(own.name == OWN and own.tokens == row.tokens for own in contenders(SMALL, quick=False))


@pytest.mark.parametrize("name", ["timm", "torchvision", "transformers"])
def test_explicit_attention_changes_the_kernel_and_not_the_result(name: str) -> None:
    pytest.importorskip(name)
    installed, explicit = (PEERS[name].build(SMALL, way).eval() for way in (False, True))
    weights = {key.removeprefix("network."): value for key, value in installed.state_dict().items()}
    prefix = "network." if next(iter(explicit.state_dict())).startswith("network.") else ""
    explicit.load_state_dict({prefix + key: value for key, value in weights.items()})
    images = torch.randn(2, 3, 32, 32)
    with torch.profiler.profile() as fused:
        expected = installed(images)
    with torch.profiler.profile() as plain:
        found = explicit(images)
    assert_close(found, expected, atol=1e-5, rtol=1e-4)
    kernels = [{event.key for event in seen.key_averages()} for seen in (fused, plain)]
    assert any("flash_attention" in key for key in kernels[0])
    assert not any("flash_attention" in key for key in kernels[1])


@pytest.fixture
def ticks() -> Iterator[float]:
    """Seconds of a clock that is asked before and after each work: two works, which take 1, 2, 6 and 10, 20, 30."""
    taken = [1.0, 10.0, 20.0, 2.0, 6.0, 30.0]
    return iter([moment for seconds in taken for moment in (0.0, seconds)])


def test_works_take_turns_after_a_run_that_does_not_count(ticks: Iterator[float]) -> None:
    order: list[str] = []
    works: dict[str, Callable] = {name: lambda name=name: order.append(name) for name in "AB"}
    timings = take_turns(works, 3, clock=lambda: next(ticks))
    assert order == list("AB" + "ABBAAB")
    assert timings == {"A": Timing((1, 2, 6)), "B": Timing((10, 20, 30))}
    assert timings["A"].facts(images=4) == {
        "images_per_second": 2,
        "seconds": 2,
        "seconds_low": 1.5,
        "seconds_high": 4,
        "samples": (1, 2, 6),
    }
    assert timings["A"].mean == 3
    assert timings["B"].times(timings["A"]) == (10, 7.5, 10)  # of 10, 10 and 5


def test_ratios_are_those_of_turns_at_equal_tokens() -> None:
    rows = [
        Contender(OWN, "default", 64, torch.nn.Identity),
        Contender(OWN, "class token", 65, torch.nn.Identity),
        Contender(OWN, "default, compiled", 64, torch.nn.Identity, compiled=True),
        Contender("timm", "as installed", 64, torch.nn.Identity),
        Contender("timm", "explicit", 64, torch.nn.Identity),
        Contender("torchvision", "explicit", 65, torch.nn.Identity),
        Contender("transformers", "explicit", 65, torch.nn.Identity),
    ]
    seconds = [2.0, 4.0, 1.0, 5.0, 3.0, 4.8]
    timings = {row.key: Timing((taken, taken, 10 * taken)) for row, taken in zip(rows, seconds, strict=False)}
    idle = Runner(torch.nn.Identity(), lambda: None, lambda: None)
    prepared: dict = {row.key: idle for row in rows} | {rows[-1].key: "not installed"}
    found = compare(rows, prepared, timings, batch_size=10)
    assert found["images_per_second"] == 5
    assert found["ratio_to_timm_as_installed"] == 2.5
    assert found["ratio_to_best_peer"] == pytest.approx(1.2)
    assert found["best_peer"] == "torchvision, explicit"
    assert [row.get("ratio") for row in found["contenders"]] == [1, 1, 0.5, 2.5, 1.5, pytest.approx(1.2), None]
    assert found["contenders"][-1]["problem"] == "not installed"
    assert compare(rows[:2], prepared, timings, batch_size=10)["ratio_to_best_peer"] is None


def test_of_each_peer_the_fastest_variants_are_compiled() -> None:
    rows = [row for row in contenders(SMALL, quick=False) if row.name in (OWN, "timm")]
    steps, inferences = (
        {row.key: Timing((2.0 if row.variant == slow else 1.0,)) for row in rows}
        for slow in ("as installed", "explicit")
    )
    own = [(OWN, "default, compiled"), (OWN, "class token, compiled")]
    assert [row.key for row in to_compile(rows, steps)] == [*own, ("timm", "explicit, compiled")]
    both = [("timm", "as installed, compiled"), ("timm", "explicit, compiled")]
    assert [row.key for row in to_compile(rows, steps, inferences)] == [*own, *both]


def test_a_network_beyond_the_limit_of_compiled_ones_is_refused_and_not_run_uncompiled() -> None:
    batch = torch.randn(2, 3, 32, 32), torch.zeros(2, dtype=torch.long)
    rows = [
        Contender("other", f"{dim}", 16, lambda dim=dim: this_vit(SMALL._replace(dim=dim, depth=1)), compiled=True)
        for dim in (4, 8, 12)
    ]
    torch._dynamo.reset()
    with torch._dynamo.config.patch(contenders_module.DYNAMO | {"recompile_limit": 2}):
        made = [prepare(row, *batch, CPU) for row in rows]
    assert any(isinstance(found, str) and "recompile_limit" in found for found in made)
    torch._dynamo.reset()


def test_a_part_of_a_training_that_left_no_time_is_not_free() -> None:
    with pytest.raises(RuntimeError, match="ProcessPool left no time"):
        Stopwatch().spent_in(type("ProcessPool", (), {}))


def test_the_share_of_attention_in_a_default_run() -> None:
    assert default_share(look=0.0, image=1.0) == 0
    assert default_share(look=36_000.0, image=1.0) == 0.5  # ten looks, eight passes over 45,000 images


@pytest.mark.parametrize("pillow", [True, False])
def test_torchvisions_data_path_gives_what_ours_gives(pillow: bool) -> None:
    images = torch.randint(256, (40, 3, 16, 16), dtype=torch.uint8)
    split = Split(images, torch.arange(40) % 2)
    data = ImageData(ImageSet("noise", ("a", "b"), split, split), validation=0, batch_size=16, seed=0)
    loader = torchvision_loader(split, Augmentation(trivial_augment=True, erasing=0.25), data, pillow=pillow)
    iterator = iter(loader)
    batches = [next(iterator)]  # by then the workers are up
    for worker in iterator._workers:  # type: ignore[attr-defined]
        os.kill(worker.pid, signal.SIGINT)  # as Ctrl-C on a terminal does
    batches += iterator
    assert [batch[0].shape for batch in batches] == [(16, 3, 16, 16), (16, 3, 16, 16), (8, 3, 16, 16)]
    assert {batch[0].dtype for batch in batches} == {torch.float32}
    lowest, highest = (((side - torch.tensor(data.mean)) / torch.tensor(data.std)).view(3, 1, 1) for side in (0, 1))
    kept = torch.cat([batch[0] for batch in batches])
    inside = (kept > lowest - 1e-5) & (kept < highest + 1e-5)  # but for the noise in what is erased
    assert inside.float().mean() > 0.8


def test_the_arithmetic_of_ceiling_and_floor() -> None:
    found = ceiling(step_seconds=2.0, step_flops=100.0, rate=200.0, products_seconds=0.5)
    assert found["fraction_of_ceiling"] == 0.25
    assert found["floor_share_of_step"] == 0.25
    assert found["fraction_of_ceiling_at_floor"] == 1
    assert ceiling(step_seconds=2.0, step_flops=1.0, rate=1.0, products_seconds=None)["floor_share_of_step"] is None


def test_every_product_of_a_step_is_recorded_with_its_layout() -> None:
    vit = this_vit(SMALL)
    images, labels = torch.randn(4, 3, 32, 32), torch.zeros(4, dtype=torch.long)
    with RecordProducts() as recorded:
        runner(vit, images, labels, CPU).step()
    flops = sum(times * product.flops for product, times in recorded.counts.items())
    gradient_of_images = 2 * 4 * SMALL.patches * 3 * SMALL.patch_size**2 * SMALL.dim  # which nobody needs
    assert flops == 3 * 4 * forward_flops(vit) - gradient_of_images
    for product in recorded.counts:
        assert product.alone("cpu")().shape[-1] == product.right.shape[-1]


def test_an_operand_is_made_as_it_lay() -> None:
    transposed = torch.randn(3, 5).to(torch.bfloat16).mT
    made = Operand.of(transposed).make("cpu")
    assert (made.shape, made.stride(), made.dtype) == (transposed.shape, transposed.stride(), transposed.dtype)


def test_a_missing_or_broken_peer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [*sys.modules, "timm.layers"]:
        if module.startswith("timm"):
            monkeypatch.setitem(sys.modules, module, None)
    batch = torch.randn(2, 3, 32, 32), torch.zeros(2, dtype=torch.long)
    (timm,) = [row for row in contenders(SMALL, quick=True) if row.key == ("timm", "as installed")]
    assert "is not installed: pip install -e '.[bench]'" in str(prepare(timm, *batch, CPU))
    broken = Contender("other", "as installed", 16, lambda: torch.nn.Linear(7, 10))
    assert str(prepare(broken, *batch, CPU)).startswith("RuntimeError: mat1 and mat2")
    leaves = Contender("other", "as installed", 16, lambda: sys.exit("not today"))
    assert prepare(leaves, *batch, CPU) == "SystemExit: not today"
    with pytest.raises(RuntimeError, match="mat1"):
        prepare(Contender(OWN, "default", 16, lambda: torch.nn.Linear(7, 10)), *batch, CPU)


def test_growth_changes_one_number_at_a_time_and_leaves_out_what_cannot_be() -> None:
    points = growth_points(Architecture(192, 9, 8, 4, 32, 4), 128, quick=False)
    base = points.pop("as above")
    for name, (architecture, size) in points.items():
        changed = sum(a != b for a, b in zip((*architecture, size), (*base[0], base[1]), strict=True))
        assert changed == 1, name
    assert {architecture.patches for architecture, _ in points.values()} == {16, 64, 256, 576}
    tiny = growth_points(Architecture(4, 1, 1, 8, 8, 1), 1, quick=False)
    assert set(tiny) == {
        "as above",
        "batch 2",
        "depth 2",
        "dim 8",
        "heads 2",
        "patch_size 4",
        "image_size 16",
        "image_size 24",
    }


def test_the_whole_program(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    file = tmp_path / "speed.json"
    words = ["quick=true", "samples=2", "image_size=8", "dim=16", "depth=1", "heads=2", "batch_size=8", "device=cpu"]
    monkeypatch.setitem(sys.modules, "vit_pytorch", None)
    monkeypatch.setattr(contenders_module, "SQUARE", {"cpu": 64})
    assert call("benchmark", [*words, f"data.root={tiny}", f"output={file}"], monkeypatch) == 0
    found = json.loads(file.read_text())
    for part, keys in PROMISED.items():
        assert keys <= set(found[part]), part
    assert found["settings"]["dim"] == 16
    missing = {"ratio_to_timm_as_installed", "ratio_to_timm", "timm"} if find_spec("timm") is None else set()
    if find_spec("timm") is None:
        missing |= {"ratio_to_best_peer"}  # the other quick one is hidden above
    unknown = {key for part in PROMISED for key in PROMISED[part] - {"output"} if found[part][key] is None}
    assert unknown - {"data.root"} == missing
    for row in found["growth"]:
        assert row["bytes"] > 0
        assert row["seconds"] > 0
    assert 0 < found["attention_logging"]["share"] < 1
    assert found["attention_logging"]["seconds_each"] > 0
    assert 0 < found["end_to_end"]["fraction_of_bare_step"] < found["end_to_end"]["fraction_without_pictures"]
    with Image.open(tmp_path / "speed.png") as plot:
        assert plot.size == (1400, 600)
    lines = capsys.readouterr().out.splitlines()
    tables = lines[next(index for index, line in enumerate(lines) if line.startswith("Images a second")) :]
    assert max(map(len, tables)) <= 80
    assert any("not installed" in line for line in tables)
    assert any(line.startswith("training, ") and "2 turns of" in line for line in lines)
    for part in ("growth: batch 4", "end to end: 1 epoch", "a bare step"):
        assert any(line.startswith(part) for line in lines), part


def test_help_and_mistakes_are_answered_without_torch() -> None:
    code = f"""
import sys
from pathlib import Path
from vit.command_line import benchmark
for words in (
    "--help", "heads=7", "patch_size=5", "dim=6 heads=2", "output=x.txt", "--multirun dim=16,32", "dim=16,32", "depht=1"
):
    sys.argv = ["benchmark.py", *words.split()]
    try:
        benchmark(Path({str(REPOSITORY / "configs")!r}))
    except SystemExit as left:
        print(words, left.code)
assert "torch" not in sys.modules
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    said = process.stderr.splitlines()
    for line, part in zip(
        said,
        (
            "heads=7 does not",
            "patch_size=5 does not",
            "divisible by 4",
            "is no FILE.json",
            "is for training",
            "one is wanted",
            "mean depth",
        ),
        strict=True,
    ):
        assert part in line
    listed = {line.split("=")[0].strip() for line in process.stdout.splitlines()}
    assert set(BenchmarkSettings.names()) <= listed
    assert max(map(len, process.stdout.splitlines())) <= 80


def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "b.png").mkdir()
    for output in ("nowhere/a.json", "b.json"):
        with pytest.raises(UserError, match="cannot be written"):
            benchmark(BenchmarkSettings.from_values({"output": f"{tmp_path}/{output}"}))
    assert [path.name for path in tmp_path.iterdir()] == ["b.png"]
