"""The one table of keys."""


class UserError(Exception):
    """A mistake that the user can mend. Its message, one line, is all that is shown."""
