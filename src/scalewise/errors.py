"""The two ways a command can end badly; each carries the one sentence that the user sees."""


class UserError(Exception):
    """Bad input (exit code 2): says what, the value given, and the valid ones."""


class RunFailed(Exception):
    """A run or a cell failed (exit code 1): says which part and why."""
