"""What stops a release."""


class Refused(Exception):
    """It can't be made, or does not hold together; the message says what to do."""
