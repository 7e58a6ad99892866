"""The Attention tab of TensorBoard: a plugin that serves maps, and the page that shows them."""

TAG, PLUGIN = "attention/maps", "attention"
