"""What the Attention tab costs: python docs/tab_measurements.py RUN DATA prints the figures of docs/tab.md.

RUN is a trained run of the default network on CIFAR-10, DATA the images as for data=folder. Its weights are looked at
ten times, as in any run, in a training that changes nothing (learning rates of 0) and is short: all that a default run
writes to its event file is there, but for some hundred points of its curves. Then TensorBoard is started on that run,
fourteen times, in turns with and without the tab, until it answers.
"""

import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import torch

from vit.data import ImageSet, load_images
from vit.data.image_set import Split
from vit.inspection.attention_logger import AttentionLogger
from vit.runs import train as training
from vit.settings import TrainSettings
from vit.training import load

LOOKS, STEPS, BATCH = 10, 60, 8  # in fewer steps some of the ten would coincide
VALIDATION, TEST = 1000, 100  # images
STARTS = 7  # of each kind
TENSORBOARD = """
import tensorboard.default
found = tensorboard.default.get_dynamic_plugins
tensorboard.default.get_dynamic_plugins = lambda: [one for one in found() if {keep} or one.__module__[:4] != "vit."]
import tensorboard.main
tensorboard.main.run_main()
"""


def event_file(run: str, data: Path, runs: Path) -> Path:
    """A run folder with what a default run writes."""
    vit, _ = load(run)
    images = load_images("folder", root=data)
    order = torch.randperm(len(images.train), generator=torch.Generator().manual_seed(0))
    few = order[: VALIDATION + STEPS * BATCH]
    cut = ImageSet(
        images.description,
        images.classes,
        Split(images.train.images[few], images.train.labels[few]),
        Split(images.test.images[:TEST], images.test.labels[:TEST]),
    )
    values = {"epochs": 1, "batch_size": BATCH, "validation": VALIDATION, "lr": 0.0, "muon_lr": 0.0, "runs": str(runs)}
    training.ViT = lambda **_: vit.train()  # type: ignore[misc, assignment]
    took: list[float] = []
    look = AttentionLogger._look

    def timed(*arguments: Any) -> None:
        began = time.perf_counter()
        look(*arguments)
        took.append(time.perf_counter() - began)

    AttentionLogger._look = timed  # type: ignore[method-assign]
    outcome = training.train(TrainSettings.from_values(values), {}, typed={}, began=time.time(), images=cut)
    assert outcome is not None
    assert len(took) == LOOKS
    print(f"a look takes {statistics.median(took):.2f} s (median); all ten, with what is drawn once, {sum(took):.1f} s")
    return outcome.folder


def seconds_to_start(logdir: Path, *, tab: bool) -> float:
    words = ["-c", TENSORBOARD.format(keep=tab), "--logdir", str(logdir), "--port", "0"]
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    try:
        line = next(line for line in process.stderr if "http://" in line)
        address = "http://" + line.split("http://")[1].split("/")[0] + "/data/plugins_listing"
        listing = urllib.request.urlopen(address).read().decode()
        assert ('"Attention"' in listing) == tab
        return time.perf_counter() - began
    finally:
        process.terminate()
        process.communicate()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        folder = event_file(sys.argv[1], Path(sys.argv[2]), Path(place))
        size = sum(file.stat().st_size for file in folder.glob("events.*"))
        pictures = sum(file.stat().st_size for file in (folder / "pictures").iterdir())
        print(f"event file {size / 1e6:.1f} MB, PNG copies {pictures / 1e6:.1f} MB")
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(STARTS):
            for tab, times in seconds.items():
                times.append(seconds_to_start(Path(place), tab=tab))
        with_tab, without = (statistics.median(times) for times in seconds.values())
        print(f"TensorBoard answers after {with_tab:.2f} s with the tab, {without:.2f} s without (medians of {STARTS})")
