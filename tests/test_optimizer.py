"""The optimiser equals torch's own two, keeps its state, and follows its plan."""

import io
import itertools
import warnings

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from tests.references import noise, tiny_vit
from vit.training.optimizer import MuonAdamW, learning_rate_factor, orthogonalize, parameter_groups

SHAPES = [(16, 8), (8, 16), (12, 12), (8, 16), (16, 8), (8, 32)]  # tall, wide, square; two of them twice


def matrices() -> list[nn.Parameter]:
    return [nn.Parameter(noise(*shape, seed=index)) for index, shape in enumerate(SHAPES)]


def train(optimizer: Optimizer, parameters: list[nn.Parameter], steps: range) -> None:
    """Steps whose gradients depend on nothing but the step."""
    for step in steps:
        for index, parameter in enumerate(parameters):
            parameter.grad = noise(*parameter.shape, seed=1000 + 100 * step + index)
        optimizer.step()


def newton_schulz(matrix: np.ndarray) -> np.ndarray:
    """Jordan et al. 2024, in float64."""
    x = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
    return x


def test_muon_equals_torchs_in_bf16():
    ours, theirs, start = matrices(), matrices(), matrices()
    muon = MuonAdamW([{"params": ours, "lr": 0.02, "weight_decay": 0.1, "muon": True}], dtype=torch.bfloat16)
    train(muon, ours, range(5))
    train(torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1), theirs, range(5))
    for our, their, before in zip(ours, theirs, start, strict=True):
        assert (our - their).norm() < 0.02 * (their - before).norm()  # 2 % of the way: bf16 has three digits


def test_muon_in_float32_equals_its_formula_in_float64():
    parameters = matrices()
    muon = MuonAdamW([{"params": parameters, "lr": 0.02, "weight_decay": 0.1, "muon": True}], dtype=torch.float32)
    train(muon, parameters, range(3))
    for index, (parameter, start) in enumerate(zip(parameters, matrices(), strict=True)):
        x, momentum = start.detach().double().numpy(), 0.0
        for step in range(3):
            gradient = noise(*x.shape, seed=1000 + 100 * step + index).double().numpy()
            momentum = 0.95 * momentum + 0.05 * gradient
            update = 0.05 * gradient + 0.95 * momentum  # Nesterov
            x = x * (1 - 0.02 * 0.1) - 0.02 * max(1, x.shape[0] / x.shape[1]) ** 0.5 * newton_schulz(update)
        assert_close(parameter.detach().double(), torch.from_numpy(x), atol=1e-5, rtol=0)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adamw_equals_torchs(weight_decay: float):
    ours, theirs = matrices(), matrices()
    train(MuonAdamW([{"params": ours, "lr": 0.01, "weight_decay": weight_decay}], dtype=torch.float32), ours, range(10))
    reference = torch.optim.AdamW(theirs, lr=0.01, betas=(0.9, 0.95), weight_decay=weight_decay, foreach=False)
    train(reference, theirs, range(10))
    for our, their in zip(ours, theirs, strict=True):
        assert_close(our, their, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 8, 32), (3, 32, 8), (2, 16, 16), (1, 1, 8)])
def test_orthogonalize_brings_singular_values_near_1(shape: tuple[int, int, int], dtype: torch.dtype):
    u, s, v = torch.linalg.svd(noise(*shape), full_matrices=False)
    s = torch.linspace(0.1, 1, s.shape[1])
    result = orthogonalize(u * s @ v, dtype=dtype).float()
    assert result.shape == shape
    values = torch.linalg.svdvals(result)
    assert values.min() > 0.6
    assert values.max() < 1.3
    assert (u.mT @ result @ v.mT).diagonal(dim1=1, dim2=2).min() > 0.6  # along the same directions


def test_orthogonalize_ignores_size_and_company():
    batch = noise(3, 8, 16) * torch.tensor([1e-4, 1.0, 1e4])[:, None, None]
    together = orthogonalize(batch, dtype=torch.float32)
    for alone, expected in zip(batch, together, strict=True):
        assert_close(orthogonalize(alone[None] * 3, dtype=torch.float32)[0], expected, atol=1e-5, rtol=1e-4)
    assert_close(orthogonalize(batch.mT, dtype=torch.float32), together.mT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_orthogonalize_leaves_zero_at_zero(dtype: torch.dtype):
    matrices = torch.stack([torch.zeros(4, 6), noise(4, 6)])
    result = orthogonalize(matrices, dtype=dtype)
    assert result[0].count_nonzero() == 0
    assert result[1].isfinite().all()


@pytest.mark.parametrize("muon", [True, False])
def test_parameters_without_gradient_stay(muon: bool):
    parameters = matrices()
    optimizer = MuonAdamW([{"params": parameters, "weight_decay": 0.1, "muon": muon}], dtype=torch.float32)
    optimizer.step()
    parameters[0].grad = torch.ones_like(parameters[0])
    optimizer.step()
    moved = [not torch.equal(after, before) for after, before in zip(parameters, matrices(), strict=True)]
    assert moved == [True, False, False, False, False, False]


def names_by_group(groups: list[dict], network: nn.Module) -> dict[str, set[str]]:
    names = {parameter: name for name, parameter in network.named_parameters()}
    return {group["name"]: {names[parameter] for parameter in group["params"]} for group in groups}


ENCODER_MATRICES = {
    f"layers.{layer}.{name}.weight"
    for layer in range(2)
    for name in ("attention.qkv", "attention.proj", "mlp.fc1", "mlp.fc2")
}


@pytest.mark.parametrize("pool", ["mean", "cls", "sequence"])
@pytest.mark.parametrize("muon_lr", [0.02, None])
def test_every_parameter_is_in_the_right_group(pool: str, muon_lr: float | None):
    vit = tiny_vit(pool=pool, position="learned")
    groups = parameter_groups(vit, lr=0.001, muon_lr=muon_lr, weight_decay=0.1)
    names = names_by_group(groups, vit)
    everything = {name for name, _ in vit.named_parameters()}
    assert sum(len(group["params"]) for group in groups) == len(everything)
    assert set.union(*names.values()) == everything

    free = {name for name in everything if name.endswith("bias") or "norm" in name}
    free |= {"position.embedding", "cls_token"} & everything
    assert names["adamw_no_decay"] == free
    if muon_lr:
        assert names["muon"] == ENCODER_MATRICES
        assert names["adamw"] == everything - free - ENCODER_MATRICES
    else:
        assert names.keys() == {"adamw", "adamw_no_decay"}
        assert names["adamw"] == everything - free

    optimizer = MuonAdamW(groups, dtype=torch.float32)
    facts = {group["name"]: (group["lr"], group["weight_decay"], group["muon"]) for group in optimizer.param_groups}
    expected = {"adamw": (0.001, 0.1, False), "adamw_no_decay": (0.001, 0.0, False), "muon": (0.02, 0.1, True)}
    assert facts == {name: expected[name] for name in names}


@pytest.mark.parametrize("body_lr", [0.0, 0.1])
def test_the_body_learns_by_a_share_of_the_rates(body_lr: float):
    vit = tiny_vit()
    groups = parameter_groups(vit, lr=0.001, muon_lr=0.02, weight_decay=0.1, body_lr=body_lr)
    rates = {group["name"]: (group["lr"], group.get("weight_decay", 0)) for group in groups}
    body = {"adamw": (1e-4, 0.1), "adamw_no_decay": (1e-4, 0), "muon": (2e-3, 0.1)} if body_lr else {}
    expected = {"head": (0.001, 0.1), "head_no_decay": (0.001, 0), **body}
    assert {name: pytest.approx(pair) for name, pair in rates.items()} == expected
    names = names_by_group(groups, vit)
    assert (names["head"], names["head_no_decay"]) == ({"head.weight"}, {"head.bias"})
    if body_lr:
        assert set.union(*names.values()) == {name for name, _ in vit.named_parameters()}
        assert sum(map(len, names.values())) == sum(len(group["params"]) for group in groups)


def both(lr: float = 0.01) -> tuple[list[nn.Parameter], MuonAdamW]:
    """Half the matrices under each of the two."""
    parameters = matrices()
    groups = [{"params": parameters[:3], "muon": True, "weight_decay": 0.1}, {"params": parameters[3:]}]
    return parameters, MuonAdamW([group | {"lr": lr} for group in groups], dtype=torch.float32)


def resumed(state: dict, values: list[nn.Parameter]) -> tuple[list[nn.Parameter], MuonAdamW]:
    """Another optimiser with the same values and a state that went through a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    parameters, optimizer = both(lr=0.5)
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data.copy_(value.data)
    optimizer.load_state_dict(torch.load(file, weights_only=True))
    return parameters, optimizer


def test_a_resumed_optimizer_goes_on_bit_for_bit():
    parameters, optimizer = both()
    train(optimizer, parameters, range(3))
    others, other = resumed(optimizer.state_dict(), parameters)
    train(optimizer, parameters, range(3, 6))
    train(other, others, range(3, 6))
    assert all(map(torch.equal, parameters, others))


def test_a_learning_rate_set_after_loading_is_used():
    parameters, optimizer = both()
    train(optimizer, parameters, range(2))
    others, other = resumed(optimizer.state_dict(), parameters)
    for group in other.param_groups:
        group["lr"] = 0.0
    train(other, others, range(2, 4))
    assert all(map(torch.equal, parameters, others))
    for group in other.param_groups:
        group["lr"] = 0.1
    train(other, others, range(4, 5))
    assert not any(map(torch.equal, parameters, others))


def test_a_plan_made_before_loading_still_sets_the_learning_rate():
    parameters, optimizer = both()
    train(optimizer, parameters, range(1))
    others, other = both()
    plan = LambdaLR(other, lambda step: 1.0 if step == 0 else 0.0)
    other.load_state_dict(optimizer.state_dict())
    train(other, others, range(1))
    before = [parameter.clone() for parameter in others]
    plan.step()
    train(other, others, range(1, 2))
    assert all(map(torch.equal, before, others))


def factors(total: int, warmup: float) -> list[float]:
    return [learning_rate_factor(step, total=total, warmup=warmup) for step in range(total)]


def test_learning_rate_rises_and_falls_evenly():
    plan = factors(100, 0.2)
    assert plan[:20] == pytest.approx(np.arange(1, 21) / 20)
    assert plan[20:] == pytest.approx(np.arange(80, 0, -1) / 80)


@pytest.mark.parametrize("total", [1, 2, 3, 7, 10, 101])
@pytest.mark.parametrize("warmup", [0.0, 0.001, 0.1, 0.25, 1 / 3, 0.5, 0.95, 1.0])
def test_learning_rate_stays_between_0_and_its_peak(total: int, warmup: float):
    plan = factors(total, warmup)
    assert all(0 < factor <= 1 for factor in plan)
    assert max(plan) == 1
    assert learning_rate_factor(total, total=total, warmup=warmup) == 0
    peak = plan.index(1)
    assert all(before < after for before, after in itertools.pairwise(plan[: peak + 1]))
    assert all(before >= after for before, after in itertools.pairwise(plan[peak:]))


def test_a_learning_rate_without_warmup_begins_at_its_peak():
    assert factors(4, 0.0) == [1, 0.75, 0.5, 0.25]
    assert factors(4, 1.0) == [0.25, 0.5, 0.75, 1]
    assert factors(1, 0.0) == factors(1, 0.1) == factors(1, 1.0) == [1]


def test_a_learning_rate_can_stay_before_it_falls():
    plan = [learning_rate_factor(step, total=100, warmup=0.1, flat=0.5) for step in range(100)]
    assert plan[:10] == pytest.approx(np.arange(1, 11) / 10)
    assert plan[10:60] == [1] * 50
    assert plan[60:] == pytest.approx(np.arange(40, 0, -1) / 40)


def test_step_returns_the_loss_of_a_closure():
    parameter = nn.Parameter(torch.tensor([[3.0]]))
    optimizer = MuonAdamW([{"params": [parameter], "lr": 0.1}], dtype=torch.float32)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (parameter**2).sum()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] == 9


@pytest.mark.parametrize("muon", [False, True])
def test_V14_a_step_whose_gradient_overflowed_is_skipped(muon: bool):
    parameter = nn.Parameter(torch.ones(4, 4))
    optimizer = MuonAdamW([{"params": [parameter], "lr": 0.1, "muon": muon}], dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    scaler.scale((parameter * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(parameter, torch.ones(4, 4))
    optimizer.zero_grad()
    scaler.scale(parameter.square().sum()).backward()
    scaler.step(optimizer)
    assert not torch.equal(parameter, torch.ones(4, 4))


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_lightning_zeroes_and_clips_the_gradients_of_every_group(clip: float):
    """Within the closure of a step, where an optimiser that hid its groups would be left with sums of gradients."""

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return self.layers(batch[0]).square().sum()

        def configure_optimizers(self) -> Optimizer:
            return MuonAdamW(parameter_groups(self, lr=0.01, muon_lr=0.02, weight_decay=0.1), dtype=torch.float32)

    batches = [noise(5, 4, seed=step) for step in range(4)]
    by_hand = Module()
    optimizer = by_hand.configure_optimizers()
    for batch in batches:
        optimizer.zero_grad()
        by_hand.training_step([batch], 0).backward()
        if clip:
            nn.utils.clip_grad_norm_(by_hand.parameters(), clip)
        optimizer.step()

    by_lightning = Module()
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, gradient_clip_val=clip or None, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with warnings.catch_warnings():
        for message in (".*does not have many workers.*", ".*LeafSpec.*"):
            warnings.filterwarnings("ignore", message)
        trainer.fit(by_lightning, DataLoader(TensorDataset(torch.cat(batches)), batch_size=5))
    for (name, ours), theirs in zip(by_hand.named_parameters(), by_lightning.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
