"""The parity check rejects the mistakes that users bring from tutorials: one that accepts them would prove nothing."""

import pytest
import torch
from torch import Tensor

from tests.references import assert_equals_torchs_layer, use_kernel
from vit.model import MultiHeadSelfAttention


class QueriesForAll(MultiHeadSelfAttention):
    """V4: the q projection is used for k and v too."""

    def split_heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, _, _ = super().split_heads(x)
        return q, q, q


class HeadsAttendToHeads(MultiHeadSelfAttention):
    """Heads are split without a transpose: the map is heads × heads, and no token attends to another."""

    def split_heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.qkv(x).unflatten(2, (3, self.heads, -1)).unbind(2)

    def combine_heads(self, mixed: Tensor) -> Tensor:
        return self.dropout(self.proj(mixed.flatten(2)))


class TokensMixed(MultiHeadSelfAttention):
    """V3: heads are put together without the transpose back."""

    def combine_heads(self, mixed: Tensor) -> Tensor:
        batch, heads, tokens, width = mixed.shape
        return self.dropout(self.proj(mixed.reshape(batch, tokens, heads * width)))


class ScaleOfTheToken(MultiHeadSelfAttention):
    """V2: dim ** -0.5 in place of head_dim ** -0.5."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads)
        self.scale = dim**-0.5

    def forward(self, x: Tensor) -> Tensor:  # explicit, for the fused kernel has a scale of its own
        return self.attend(x)[0]


class SoftmaxOverQueries(MultiHeadSelfAttention):
    """V5: softmax(dim=1), right for a single head without a batch, taken over to heads."""

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * self.scale @ k.transpose(-2, -1)).softmax(dim=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x)[0]


class DropoutEverywhere(MultiHeadSelfAttention):
    """Half of everything is dropped, unasked."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads, dropout=0.5, attention_dropout=0.5)


class DropoutOfWeights(MultiHeadSelfAttention):
    """Half of the attention weights are dropped, unasked."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads, attention_dropout=0.5)


class WrongInForwardOnly(MultiHeadSelfAttention):
    """The map that is shown is right; what is trained is not."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split_heads(x)
        return self.combine_heads((q @ k.transpose(-2, -1)).softmax(dim=-1) @ v)


MISTAKES = [
    QueriesForAll,
    HeadsAttendToHeads,
    TokensMixed,
    ScaleOfTheToken,
    SoftmaxOverQueries,
    DropoutEverywhere,
    DropoutOfWeights,
    WrongInForwardOnly,
]


@pytest.fixture(autouse=True, params=["explicit", "fused"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernel(request.param, monkeypatch)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_V2_V3_V4_V5_parity_check_rejects(mistake: type[MultiHeadSelfAttention]):
    torch.manual_seed(0)  # of the dropout
    with pytest.raises(AssertionError):
        assert_equals_torchs_layer(mistake(24, 4))


def test_parity_check_accepts_the_right_class():
    assert_equals_torchs_layer(MultiHeadSelfAttention(24, 4))
