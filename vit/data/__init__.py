"""Images in, batches out: one file for each source of images."""

from vit.data.augmentation import crop_and_flip, normalize
from vit.data.datamodule import ImageData, derived_seed, load_images
from vit.data.image_set import ImageSet, Split

__all__ = ["ImageData", "ImageSet", "Split", "crop_and_flip", "derived_seed", "load_images", "normalize"]
