"""Looking inside: maps (pure functions), pictures, and the callbacks that log them. Nothing is imported here, because
TensorBoard passes here on its way to the tab and would wait for torch."""
