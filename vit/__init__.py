"""A miniature Vision Transformer.

Start reading at `vit/model/vit.py`. Nothing is imported here: a mistyped setting is answered before torch loads.

The letters of every shape in this project:
    B images in a batch · C channels · H height · W width · N patches · T tokens (prefix tokens and patches)
    D width of a token (`dim`) · L layers (`depth`) · h heads · d width of a head (D / h) · K classes
"""
