"""What a Prometheus wants to see of whoever asks it, and the flags for that."""

import argparse
from dataclasses import dataclass

from kvpressure.advise.seen import AdviseError


@dataclass(frozen=True, slots=True)
class Access:
    """
    What a Prometheus wants to see. An empty text is none.

    Args:
        bearer_token_file: a file with a token.
        user: for basic authentication.
        password_file: a file with the password for it.
        headers: more headers, as ("X-Scope-OrgID", "1").
        ca_file: certificate authorities to trust, PEM.
        insecure: accept any certificate.
        timeout: seconds for one answer.
    """

    bearer_token_file: str = ""
    user: str = ""
    password_file: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    ca_file: str = ""
    insecure: bool = False
    timeout: float = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags, as a group of their own."""
    group = parser.add_argument_group("access to Prometheus", "With --prometheus, where it asks for more than its URL.")
    group.add_argument("--prometheus-bearer-token-file", default="", metavar="FILE", help="send the token in this file")
    group.add_argument("--prometheus-user", default="", metavar="NAME", help="user for basic authentication")
    group.add_argument("--prometheus-password-file", default="", metavar="FILE", help="file with the password for it")
    group.add_argument(
        "--prometheus-header",
        action="append",
        default=[],
        metavar="HEADER",
        help='send this header, as "X-Scope-OrgID: 1"; repeatable',
    )
    group.add_argument(
        "--prometheus-ca-file", default="", metavar="FILE", help="trust the authorities in this file (PEM)"
    )
    group.add_argument("--prometheus-insecure-skip-verify", action="store_true", help="accept any certificate")


def given(args: argparse.Namespace) -> dict[str, object]:
    """What was given for access, by its flag."""
    found = {"--" + name.replace("_", "-"): value for name, value in vars(args).items()}
    return {flag: value for flag, value in found.items() if flag.startswith("--prometheus-") and value}


def access_of(args: argparse.Namespace) -> Access:
    """
    What the flags say.

    Raises:
        AdviseError: they do not go together, or a header is none.
    """
    if bool(args.prometheus_user) != bool(args.prometheus_password_file):
        raise AdviseError("--prometheus-user and --prometheus-password-file belong together; give both")
    if args.prometheus_user and args.prometheus_bearer_token_file:
        raise AdviseError("--prometheus-user and --prometheus-bearer-token-file exclude each other; give one")
    return Access(
        bearer_token_file=args.prometheus_bearer_token_file,
        user=args.prometheus_user,
        password_file=args.prometheus_password_file,
        headers=tuple(_header(line) for line in args.prometheus_header),
        ca_file=args.prometheus_ca_file,
        insecure=args.prometheus_insecure_skip_verify,
    )


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    # A header can hold a key: what is wrong with it is said without it.
    if not colon or not name.strip() or not line.isprintable() or not line.isascii():
        raise AdviseError('--prometheus-header is not a header like "X-Scope-OrgID: 1"')
    return name.strip(), value.strip()
