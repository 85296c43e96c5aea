"""Errors that a request can cause, each with one sentence for the page."""


class StateError(ValueError):
    """A request or state that is malformed; answered with status 400."""


class NotFound(LookupError):
    """A file or sweep that does not exist; answered with status 404."""
