"""Weights to begin with: of other libraries' Vision Transformers, recognised by their names; and for other sizes.

    file ─ load ─► their names ─ translate ─► (ViT, Facts) ─ fitted ─► ViT of another image or patch size, other classes

What a plain ViT has (pre-norm, exact GELU, learned positions, the class token or the mean of the normalised patches) is
taken over exactly. Whatever shows by its names or shapes that it has anything else is refused, since here it would
compute something else.
"""

import dataclasses
import math
import re
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from vit.model import ViT
from vit.settings import UserError
from vit.training.checkpoint import WEIGHTS_ONLY, Facts, exported_facts, find_checkpoint, load_own
from vit.training.untrusted import FLOATS, refuse_damage

PATCHES, BIAS = "patch_embedding.projection.weight", "patch_embedding.projection.bias"
POSITIONS = "position.embedding"
TORCHVISION = {  # their names, as regular expressions, and ours
    r"^class_token$": "cls_token",
    r"^conv_proj\.": "patch_embedding.projection.",
    r"^encoder\.pos_embedding$": POSITIONS,
    r"^encoder\.layers\.encoder_layer_": "layers.",
    r"\.ln_": ".norm",
    r"\.self_attention\.in_proj_": ".attention.qkv.",
    r"\.self_attention\.out_proj\.": ".attention.proj.",
    r"\.mlp\.0\.": ".mlp.fc1.",
    r"\.mlp\.3\.": ".mlp.fc2.",
    r"^encoder\.ln\.": "norm.",
    r"^heads\.head\.": "head.",
}
TIMM = {
    r"^patch_embed\.proj\.": "patch_embedding.projection.",
    r"^pos_embed$": POSITIONS,
    r"^(reg_token|register_tokens)$": "registers",
    r"^blocks\.": "layers.",
    r"\.attn\.": ".attention.",
    r"\.ls(\d)\.gamma$": r".scale\1",
}
TRANSFORMERS = {  # as its files have them, and as its modules have had them since its version 5
    r"^embeddings\.position_embeddings$": POSITIONS,
    r"^embeddings\.patch_embeddings\.": "patch_embedding.",
    r"^embeddings\.register_tokens$": "registers",
    r"^embeddings\.": "",
    r"^(encoder\.layer|layers)\.": "layers.",
    r"\.attention\.(?:attention\.)?([qkv])(?:uery|ey|alue|_proj)\.": r".attention.\1.",
    r"\.attention\.(output\.dense|o_proj)\.": ".attention.proj.",
    r"\.intermediate\.dense\.": ".mlp.fc1.",
    r"\.output\.dense\.": ".mlp.fc2.",
    r"\.layernorm_before\.": ".norm1.",
    r"\.layernorm_after\.": ".norm2.",
    r"\.layer_scale(\d)\.lambda1$": r".scale\1",
    r"^layernorm\.": "norm.",
    r"^classifier\.": "head.",
}
LIBRARIES = {  # by the name of one weight
    "conv_proj.weight": ("torchvision", TORCHVISION),
    "patch_embed.proj.weight": ("timm or DINO", TIMM),
    "embeddings.patch_embeddings.projection.weight": ("transformers", TRANSFORMERS),
}
MOST_LAYERS = 1000
ODD_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}  # of SO400M, H, g and G; in all others a head is 64 wide
NORMALIZATIONS = {"imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), "half": ((0.5,) * 3, (0.5,) * 3)}


def load(
    run: str | Path,
    *,
    heads: int | None = None,
    normalization: str | None = None,
    image_size: tuple[int, int] | None = None,
) -> tuple[ViT, Facts]:
    """The network of a run, a checkpoint or another library's file, in eval mode, and its facts.

    heads and normalization are for files of other libraries: see `translate`. For another image_size than its own, see
    `fitted`. Code in a file is never run. Raises UserError if it is missing, broken or something else.
    """
    path = find_checkpoint(run)
    content: dict[str, Any] = {"facts": None} if path.suffix == ".ckpt" else _read_tensors(path)
    try:
        if "facts" in content or (path.suffix == WEIGHTS_ONLY and exported_facts(path)):
            vit, facts = load_own(path)
            if normalization is not None or heads not in (None, facts.model["heads"]):
                raise ValueError("it is of this program, and knows its heads and its normalization: leave them out")
        else:
            if "model" in content and normalization is None:  # so the authors of DeiT and MAE wrap their files
                normalization = "imagenet"
            tensors: Any = content.get("model", content.get("state_dict", content))
            values = tensors.values() if isinstance(tensors, Mapping) else [None]
            if not all(isinstance(value, Tensor) and value.layout == torch.strided for value in values):
                raise ValueError("it holds other things than tensors; save the state dict alone")
            if sum(value.nbytes for value in tensors.values()) > path.stat().st_size:  # a view may show a number often
                raise ValueError("its weights are larger than the file")
            vit, facts = translate(tensors, heads=heads, normalization=normalization)
        if image_size is None:
            return vit, facts
        after = dataclasses.replace(facts, model=facts.model | {"image_size": image_size})
        return fitted(vit, facts, after).eval(), after
    except (ValueError, LookupError, AttributeError, TypeError, RuntimeError, ArithmeticError) as error:
        raise UserError(f"{path} cannot be used: {' '.join(str(error).split())[:400]}") from error


def _read_tensors(path: Path) -> dict[str, Any]:
    try:
        if path.suffix == WEIGHTS_ONLY:
            return load_file(path)
        if zipfile.is_zipfile(path):
            refuse_damage(path)
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # a damaged file fails in any layer of zip, pickle and torch
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{path} cannot be read as tensors alone, without code ({reason})") from error


def translate(
    tensors: Mapping[str, Tensor], *, heads: int | None = None, normalization: str | None = None
) -> tuple[ViT, Facts]:
    """The network that another library's weights, recognised by their names, are of; in eval mode, and its facts.

    They do not say how many heads there are and how images are normalised: unless told, a head is 64 wide, as nearly
    all are, and the normalisation is the usual one of such networks. Layer scale (Touvron et al. 2021, arXiv
    2103.17239) goes into the projections that it scales, a class token without a position gets one of zero, and without
    a head the logits are the pooled vector: all exactly. Raises ValueError if they are not those of a plain ViT.
    """
    library, theirs = _recognize(tensors)
    dim, channels, patch_size, _ = tensors[theirs[PATCHES]].shape
    if channels != 3:
        raise ValueError(f"it takes images of {channels} channels instead of 3")
    left_out = [our for our in theirs if our.startswith(("mask_token", "pooler."))]  # no matter for the class token
    if "head.weight" in theirs and tensors[theirs["head.weight"]].shape[1:] != (dim,):  # DINOv2's reads patches too
        left_out += ["head.weight", "head.bias"]
    if odd := [theirs[our] for our in theirs if tensors[theirs[our]].dtype not in (*FLOATS, torch.float64)]:
        raise ValueError(f"no plain floating-point numbers are {_few(odd)}")
    state = {our: tensors[name].to(torch.float32, copy=True) for our, name in theirs.items() if our not in left_out}
    has_head = "head.weight" in state
    if not has_head:
        if dim**2 > sum(value.numel() for value in state.values()):  # lest a small file asks for a large matrix
            raise ValueError("it lacks the layers of a ViT")
        state |= {"head.weight": torch.eye(dim), "head.bias": torch.zeros(dim)}
    if normalization is None:  # without a head or pooler, or with layer scale, they are Meta's
        of_google = library != "torchvision" and any(our.startswith(("head.", "pooler.")) for our in theirs)
        normalization = "half" if of_google and not any(".scale" in our for our in theirs) else "imagenet"
    state[PATCHES] = state[PATCHES].flatten(1)
    _join_qkv(state)
    _fold_layer_scale(state)
    side = _settle_positions(state)
    depth, classes = len({our.split(".")[1] for our in state if our.startswith("layers.")}), len(state["head.weight"])
    if min(dim, patch_size, side, depth, classes) < 1 or depth > MOST_LAYERS:
        raise ValueError(f"dim={dim}, {side}×{side} patches of {patch_size}, {depth} layers, {classes} classes: no ViT")
    hidden = len(state.get("layers.0.mlp.fc1.weight", ()))
    heads_known = heads or ODD_HEADS.get(dim, 0 if dim % 64 else dim // 64)
    model: dict[str, Any] = {
        "image_size": (side * patch_size, side * patch_size),
        "patch_size": patch_size,
        "channels": channels,
        "classes": classes,
        "dim": dim,
        "depth": depth,
        "heads": heads_known or 1,
        "mlp_ratio": hidden / dim if int(dim * (hidden / dim)) == hidden else math.nextafter(hidden / dim, math.inf),
        "pool": "cls" if "cls_token" in state else "mean",
        "position": "learned",
        "registers": state["registers"].shape[1] if "registers" in state else 0,
        "qkv_bias": "layers.0.attention.qkv.bias" in state,
        "norm_eps": 1e-12 if any(".layernorm_before." in name for name in tensors) else 1e-6,
    }
    with torch.device("meta"):
        vit = ViT(**model)
    _refuse_misfit(vit, state, theirs)
    if not heads_known:
        raise ValueError(f"dim={dim} is no multiple of 64, so that the number of heads is not known: add heads=")
    vit.load_state_dict(state, assign=True)
    about = f"{library}'s ViT, dim {dim}, {model['depth']} layers of {heads_known} heads ({dim // heads_known} wide)"
    about += f", patches of {patch_size} at {side * patch_size}, normalization={normalization}"
    about += "" if has_head else ", no head: its features are shown as classes"
    about += f", left out: {_few([theirs[our] for our in left_out])}" if left_out else ""
    names = tuple(f"{'class' if has_head else 'feature'} {number}" for number in range(classes))
    mean, std = NORMALIZATIONS[normalization]
    return vit.eval(), Facts(model, {}, names, mean, std, about, train_images=0, precision="32-true", weights="raw")


def _recognize(tensors: Mapping[str, Tensor]) -> tuple[str, dict[str, str]]:
    """The library, and for each of our names theirs, of which a beginning such as "vit." or "module." is left out."""
    for mark, (library, names) in LIBRARIES.items():
        for found in tensors:
            if found.endswith(mark) and tensors[found].ndim == 4:
                prefix, theirs = found.removesuffix(mark), {}
                for name in tensors:
                    our = name.removeprefix(prefix)
                    for pattern, replacement in names.items():
                        our = re.sub(pattern, replacement, our)
                    theirs[our] = name
                return library, theirs
    raise ValueError(f"no ViT of torchvision, timm, DINO or transformers has such names as {_few(tensors)}")


def _join_qkv(state: dict[str, Tensor]) -> None:
    for our in [our for our in state if ".attention.q." in our]:
        parts = [our.replace(".q.", f".{part}.") for part in "qkv"]
        if state.keys() >= set(parts):
            state[our.replace(".q.", ".qkv.")] = torch.cat([state.pop(part) for part in parts])


def _fold_layer_scale(state: dict[str, Tensor]) -> None:
    for our in [our for our in state if our.endswith((".scale1", ".scale2"))]:
        gamma, scaled = state.pop(our), our.replace("scale1", "attention.proj").replace("scale2", "mlp.fc2")
        for name in {f"{scaled}.weight", f"{scaled}.bias"} & state.keys():
            state[name] = state[name] * (gamma[:, None] if state[name].ndim == 2 else gamma)


def _settle_positions(state: dict[str, Tensor]) -> int:
    """Give a class token that has no position one of zero; return the side of the grid of patches, if it is square."""
    if POSITIONS not in state:
        return 1
    count, prefix_tokens = state[POSITIONS].shape[1], int("cls_token" in state)
    if prefix_tokens and math.isqrt(count) ** 2 == count:
        state[POSITIONS] = F.pad(state[POSITIONS], (0, 0, 1, 0))
        return math.isqrt(count)
    return math.isqrt(count - prefix_tokens)


def _refuse_misfit(vit: ViT, state: Mapping[str, Tensor], theirs: Mapping[str, str]) -> None:
    """Raise ValueError unless these are the weights of this network, by name and shape, and are numbers."""
    expected = vit.state_dict()
    reasons = {
        "this network has no place for": state.keys() - expected.keys(),
        "it lacks": expected.keys() - state.keys(),
        "of an odd shape are": {our for our in state.keys() & expected if state[our].shape != expected[our].shape},
        "not finite are": {our for our, value in state.items() if not value.isfinite().all()},
    }
    odd = [f"{reason} {_few(sorted(theirs.get(o, o) for o in names))}" for reason, names in reasons.items() if names]
    if odd:
        raise ValueError(f"it is no plain ViT: {'; '.join(odd)}")


def _few(names: Collection[str]) -> str:
    return " ".join(list(names)[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def fitted(source: ViT, before: Facts, after: Facts) -> ViT:
    """The network of `after`, which begins with the weights of `source`, the network of `before`.

    Positions and patches are resized; what another normalisation of the images changes is undone in the projection of
    patches, exactly; the head is kept where the classes are the same. Raises ValueError where sizes do not fit.
    """
    vit, state = ViT(**after.model), source.state_dict()
    old, new = source.patch_embedding, vit.patch_embedding
    weight = state[PATCHES].unflatten(1, (-1, old.patch_size, old.patch_size))
    means, stds = (torch.tensor([getattr(facts, name) for facts in (before, after)]) for name in ("mean", "std"))
    state[BIAS] = state[BIAS] + weight.sum((2, 3)) @ ((means[1] - means[0]) / stds[0])
    weight = weight * (stds[1] / stds[0])[:, None, None]
    state[PATCHES] = resized_patches(weight, new.patch_size).flatten(1)
    if POSITIONS in state:
        state[POSITIONS] = resized_positions(state[POSITIONS], old.grid, new.grid)
    if before.classes != after.classes:
        state |= {name: value for name, value in vit.state_dict().items() if name.startswith("head.")}
    vit.load_state_dict(state)
    return vit


def resized_positions(embedding: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Bicubic, as an image of D channels; those of prefix tokens stay: (1,T,D) → (1,T',D)."""
    prefix, patches = embedding.split([embedding.shape[1] - old[0] * old[1], old[0] * old[1]], dim=1)
    picture = patches.mT.unflatten(2, old)
    return torch.cat([prefix, F.interpolate(picture, new, mode="bicubic", antialias=True).flatten(2).mT], dim=1)


def resized_patches(weight: Tensor, size: int) -> Tensor:
    """What gives resized patches the tokens of the original ones, as nearly as can be: (D,C,P,P) → (D,C,p,p).

    Beyer et al. 2022 (FlexiViT, arXiv 2212.08013), section 3.4.
    """
    old = weight.shape[3]
    if old == size:
        return weight
    pixels = torch.eye(old**2).view(old**2, 1, old, old)
    resize = F.interpolate(pixels, (size, size), mode="bicubic", antialias=True).flatten(1)  # (P²,p²)
    return (weight.flatten(2) @ torch.linalg.pinv(resize).mT).unflatten(2, (size, size))
