"""What ends a request early."""

from __future__ import annotations


class LegError(Exception):
    """An engine could not be asked or stopped answering; `str()` is for the log, not for clients."""

    def __init__(self, what: str, *, started: bool = False, refused: bool = False, timeout: bool = False) -> None:
        super().__init__(what)
        self.started = started
        """A byte of the answer had come."""
        self.refused = refused
        """The engine never saw the request."""
        self.timeout = timeout


class Refused(Exception):
    """The client is answered with an error of the proxy's own."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class Passed(Exception):
    """The client is answered with an engine's own error, such as a 400."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.headers = headers
        self.body = body
