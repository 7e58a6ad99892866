"""The only place that composes the parts: what a command does from its first line to its last."""
