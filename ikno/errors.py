"""The one exception meant for people."""


class UserError(ValueError):
    """Bad input from a person: one line that says what was wrong, what was found, what is accepted and what to do.

    The command line prints the message without a traceback and exits with code 2. Misuse of the library by a
    programmer raises a plain ``ValueError`` instead.
    """
