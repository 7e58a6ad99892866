"""Muon for the encoder's matrices, AdamW for everything else, as one optimiser; and the plan of the learning rate."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.optim import AdamW

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024: steepest at zero, not exact
BETAS = (0.9, 0.95)
MOMENTUM = 0.95


def orthogonalize(matrices: Tensor, *, dtype: torch.dtype, steps: int = 5) -> Tensor:
    """Bring every singular value of each matrix near 1 by Newton–Schulz iterations: (M,R,C) → (M,R,C).

    Jordan et al. 2024, "Muon", kellerjordan.github.io/posts/muon. bf16 is enough where products in it are native;
    elsewhere it costs 14 times as much as float32.
    """
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.to(dtype)
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class MuonAdamW(AdamW):
    """Muon for the parameter groups whose "muon" is true, AdamW (Loshchilov & Hutter 2019) for the others.

    One object, so that one scheduler, one state and automatic optimisation serve both. Matrices of one shape are
    orthogonalised in one batched product, in `dtype`. Equal to `torch.optim.Muon`, by test.
    """

    def __init__(self, groups: Iterable[dict], *, dtype: torch.dtype) -> None:
        self.dtype = dtype
        super().__init__([{"muon": False, **group} for group in groups], betas=BETAS, weight_decay=0.0, fused=True)
        self._step_supports_amp_scaling = False  # fused AdamW would unscale its gradients itself, and Muon's not at all

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        with (
            torch.enable_grad()
        ):  # first, since Lightning zeroes, computes and clips the gradients of all groups in here
            loss = None if closure is None else closure()
        every_group = self.param_groups
        self.param_groups = [group for group in every_group if not group["muon"]]
        try:
            super().step()
        finally:
            self.param_groups = every_group
        for group in every_group:
            if group["muon"]:
                self._muon(group)
        return loss

    def _muon(self, group: dict) -> None:
        by_shape: dict[torch.Size, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            if parameter.grad is not None:
                by_shape.setdefault(parameter.shape, []).append(parameter)
        for (rows, columns), matrices in by_shape.items():
            updates = []
            for matrix in matrices:
                state = self.state[matrix]
                if not state:  # "step" is what AdamW expects to find in every state that it loads
                    state.update(step=torch.zeros(()), momentum=torch.zeros_like(matrix))
                state["step"] += 1
                state["momentum"].lerp_(matrix.grad, 1 - MOMENTUM)
                updates.append(matrix.grad.lerp(state["momentum"], MOMENTUM))  # type: ignore[union-attr]
            directions = orthogonalize(torch.stack(updates), dtype=self.dtype)
            rate = group["lr"] * math.sqrt(max(1, rows / columns))
            for matrix, direction in zip(matrices, directions, strict=True):
                matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-rate)


def parameter_groups(
    network: nn.Module, *, lr: float, muon_lr: float | None, weight_decay: float, body_lr: float = 1.0
) -> list[dict]:
    """Groups for `MuonAdamW`: the matrices of the encoder's layers go to Muon, unless muon_lr is None.

    Weights of linear layers decay; biases, norms, all tokens, positions and scales do not. body_lr is the share of the
    rates by which all but `network.head` learns; at 0 it is in no group.
    """
    matrices = {id(module.weight) for module in network.modules() if isinstance(module, nn.Linear)}
    encoder = {id(parameter) for layer in network.layers for parameter in layer.parameters()}  # type: ignore[union-attr]
    muon, decay, no_decay = [], [], []
    for name, parameter in network.named_parameters():
        if body_lr != 1 and name.startswith("head."):
            continue  # below
        if id(parameter) not in matrices:
            no_decay.append(parameter)
        elif muon_lr is not None and id(parameter) in encoder:
            muon.append(parameter)
        else:
            decay.append(parameter)
    groups = [
        {"params": decay, "lr": body_lr * lr, "weight_decay": weight_decay, "name": "adamw"},
        {"params": no_decay, "lr": body_lr * lr, "name": "adamw_no_decay"},
    ]
    if muon_lr is not None:
        rate = body_lr * muon_lr
        groups.append({"params": muon, "lr": rate, "weight_decay": weight_decay, "muon": True, "name": "muon"})
    if body_lr == 1:
        return groups
    weight, bias = network.get_parameter("head.weight"), network.get_parameter("head.bias")
    head = [
        {"params": [weight], "lr": lr, "weight_decay": weight_decay, "name": "head"},
        {"params": [bias], "lr": lr, "name": "head_no_decay"},
    ]
    return head if body_lr == 0 else groups + head


def learning_rate_factor(step: int, *, total: int, warmup: float, flat: float = 0.0) -> float:
    """The share of its peak that the rate has in a step.

    It rises over `warmup` of all steps, stays over `flat` of them, and falls evenly to 0.
    """
    rising, falling = warmup * total, total - (warmup + flat) * total
    return min((step + 1) / rising if rising >= 1 else 1.0, (total - step) / max(1.0, falling), 1.0)
