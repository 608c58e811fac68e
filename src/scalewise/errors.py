"""The two ways a command can end badly; each carries the one sentence that the user sees."""

PYDANTIC = {
    "Value error, ": "",
    ", unable to parse string as an integer": "",
    ", unable to parse string as a number": "",
    "Input should be a valid integer": "it must be a whole number",
    "Input should be a valid number": "it must be a number",
    "Input should be": "it must be",
}


class UserError(Exception):
    """Bad input (exit code 2): says what, the value given, and the valid ones."""


class UsersCodeFailed(UserError):
    """What the user named is there, and raises: says where and what."""


class RunFailed(Exception):
    """A run or a cell failed (exit code 1): says which part and why."""


def in_our_words(message: str) -> str:
    """What pydantic says of a value, as everything else is said."""
    for theirs, ours in PYDANTIC.items():
        message = message.replace(theirs, ours)
    return message
