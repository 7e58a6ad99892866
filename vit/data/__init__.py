"""Images in, batches out: one file for each source of images."""

from vit.data.augmentation import Augmentation, Batch, normalize
from vit.data.datamodule import ImageData, derived_seed, load_images
from vit.data.image_set import ImageSet, Split

__all__ = ["Augmentation", "Batch", "ImageData", "ImageSet", "Split", "derived_seed", "load_images", "normalize"]
