"""From an image to a row of tokens."""

from torch import Tensor, nn


class PatchEmbedding(nn.Module):
    """Cut an image into square patches and project each to a token: (B,C,H,W) → (B,N,D).

    The same as a convolution whose stride is its kernel. Dosovitskiy et al. 2021 (arXiv 2010.11929), equation 1.
    Raises ValueError if patch_size does not divide image_size, or an image has another shape.
    """

    def __init__(self, image_size: tuple[int, int], patch_size: int, *, channels: int, dim: int) -> None:
        super().__init__()
        if patch_size < 1 or any(side % patch_size for side in image_size):
            raise ValueError(f"patch_size={patch_size} does not divide image_size={image_size}")
        self.image_shape = (channels, *image_size)
        self.patch_size = patch_size
        self.grid = (image_size[0] // patch_size, image_size[1] // patch_size)
        self.projection = nn.Linear(channels * patch_size**2, dim)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[1:] != self.image_shape:
            raise ValueError(f"images of shape {tuple(images.shape[1:])}, but this network takes {self.image_shape}")
        (rows, columns), p = self.grid, self.patch_size
        patches = images.reshape(-1, self.image_shape[0], rows, p, columns, p).permute(0, 2, 4, 1, 3, 5)
        return self.projection(patches.flatten(1, 2).flatten(2))
