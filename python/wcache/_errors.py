"""Why something failed: one exception a reason of wcache.h."""


class Error(Exception):
    """Any failure. `reason` is its word ("not-running"), `message` what was wrong and where, `hint` what to do about it
    (may be empty)."""

    reason = ""

    def __init__(self, message="", hint=""):
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self):
        return f"{self.message} ({self.hint})" if self.hint else self.message


class Invalid(Error, ValueError):
    """An argument."""
    reason = "invalid"


class NotRunning(Error):
    """No daemon answers."""
    reason = "not-running"


class NotFound(Error, KeyError):
    """No such entry or tensor."""
    reason = "not-found"


class NotReady(Error):
    """Still filling; try again, or give `wait`."""
    reason = "not-ready"


class Mismatch(Error):
    """Another fingerprint or role than asked for."""
    reason = "mismatch"


class Stale(Error):
    """The source changed since it was cached."""
    reason = "stale"


class Evicted(Error):
    """Dropped on request."""
    reason = "evicted"


class Busy(Error):
    """Held by somebody."""
    reason = "busy"


class OverBudget(Error):
    """A limit is too small."""
    reason = "over-budget"


class Denied(Error, PermissionError):
    """Permission."""
    reason = "denied"


class Unsupported(Error):
    """This entry or machine cannot be served."""
    reason = "unsupported"


class Corrupt(Error):
    """Bytes are not what they claim to be."""
    reason = "corrupt"


class Io(Error):
    """The operating system refused."""
    reason = "io"


class Timeout(Error):
    """A deadline passed."""
    reason = "timeout"


class Version(Error):
    """The daemon speaks another protocol."""
    reason = "version"


class Internal(Error):
    """A bug, or no memory left."""
    reason = "internal"


REASONS = {kind.reason: kind for kind in Error.__subclasses__()}


def make(reason, message, hint):
    return REASONS.get(reason, Internal)(message, hint)
