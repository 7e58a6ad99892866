"""Makes docs/demo, a trained network small enough to lie in the repository: python docs/demo.py RUN DATA

RUN is a run of a shipped recipe on CIFAR-10, DATA its images (data=folder). The weights are kept in float16,
without the optimiser's memory; result.json is the run's, but for what these very weights score on the test images.
"""

import json
import sys
from pathlib import Path

import torch

from vit.data import load_images
from vit.evaluation.score import score
from vit.runs.result import RESULT
from vit.training import load
from vit.training.checkpoint import LAST, read_checkpoint

DEMO = Path(__file__).with_name("demo")


def main(run: Path, data: Path) -> None:
    content, facts = read_checkpoint(run / LAST)
    state = {name: value.half() for name, value in content["state_dict"].items()}
    DEMO.mkdir(exist_ok=True)
    torch.save({"facts": content["facts"], "state_dict": state}, DEMO / LAST)
    vit, _ = load(DEMO)
    test = score(vit, load_images("folder", root=data).test, mean=facts.mean, std=facts.std)
    result = json.loads((run / RESULT).read_text())
    result |= {"test_accuracy": test.accuracy, "test_top5": test.top5, "test_loss": test.loss}
    result["command"] = " ".join(w for w in result["command"].split() if not w.startswith(("data.root=", "runs=")))
    (DEMO / RESULT).write_text(json.dumps(result, indent=1) + "\n")
    print(f"{(DEMO / LAST).stat().st_size / 1e6:.2f} MB, test accuracy {test}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
