"""The answers that are the tap's own."""

from enum import Enum


class Refusal(Enum):
    """
    Why a request is not passed on, or no answer is.

    Each has the reason that is counted, and status and message of the answer.
    """

    OVERLOAD = "overload", 503, "Too many requests are open at the tap (tap.max-requests); try again later."
    HEADERS = "headers", 503, "The request's headers are longer than the tap allows (tap.max-header-bytes)."
    CONNECTIONS = "connections", 503, "Too many connections are open at the tap (file descriptors); try again later."
    MALFORMED = "malformed", 400, "The request is not valid HTTP."
    CONNECT = "connect", 501, "The tap passes requests on to one server and opens no connections to others."
    UNREACHABLE = "unreachable", 502, "The upstream cannot be reached."
    UNANSWERED = "unanswered", 502, "The upstream closed the connection without an answer."
    UNREADABLE = "unreadable", 502, "The upstream's answer is not valid HTTP."
    FAULT = "fault", 500, "The tap failed to pass the request on; its log says where."

    def __init__(self, reason: str, status: int, message: str) -> None:
        self.reason = reason
        self.status = status
        self.message = message


REFUSED = tuple(refusal.reason for refusal in Refusal)
"""Every reason: values of a label, so they are few and fixed."""
