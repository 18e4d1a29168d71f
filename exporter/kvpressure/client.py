"""What a client of vLLM sends and trusts, by the settings: the same for the sampler and for `check`."""

import base64
import ssl
from urllib.parse import urlsplit

from kvpressure import __version__
from kvpressure.config import VllmConfig
from kvpressure.credentials import FileFault, identify, read_secret, trust
from kvpressure.settings import ConfigError

_DEFAULTS = (("Accept", "text/plain;version=0.0.4"), ("User-Agent", f"kvpressure/{__version__}"))


def check(config: VllmConfig) -> None:
    """
    Refuse settings that ask for what no client can do.

    Raises:
        ConfigError: they do not fit together.
    """
    if config.unix_socket and urlsplit(config.url).scheme == "https":
        raise ConfigError("vllm.unix-socket: speaks plain HTTP only; give vllm.url as http://")
    if ":" in config.basic_auth_user:
        raise ConfigError("vllm.basic-auth-user: a user name cannot hold a colon")


def headers(config: VllmConfig) -> list[tuple[str, str]]:
    """
    The headers of one request, with the credentials as their files hold them now. A name can stand twice.

    Raises:
        FileFault: a file with a credential cannot be used.
    """
    given = [(name, value.strip()) for name, _, value in (line.partition(":") for line in config.header)]
    names = {name.lower() for name, _ in given}
    # vLLM answers on the loop that streams tokens: ask for the cheapest format.
    given += [(name, value) for name, value in _DEFAULTS if name.lower() not in names]
    credentials = _authorization(config)
    if credentials:
        given = [(name, value) for name, value in given if name.lower() != "authorization"]
        given.append(("Authorization", credentials))
    return given


def _authorization(config: VllmConfig) -> str:
    """The value of the Authorization header, or an empty text."""
    if config.bearer_token_file:
        token = read_secret("vllm.bearer-token-file", config.bearer_token_file)
        if not token.isascii():
            raise FileFault(f"vllm.bearer-token-file: {config.bearer_token_file} must hold ASCII text")
        return f"Bearer {token}"
    if config.basic_auth_user:
        password = read_secret("vllm.basic-auth-password-file", config.basic_auth_password_file)
        return f"Basic {base64.b64encode(f'{config.basic_auth_user}:{password}'.encode()).decode()}"
    return ""


def context(config: VllmConfig) -> ssl.SSLContext:
    """
    What to trust and to show over TLS.

    Raises:
        FileFault: a file with certificates cannot be used.
    """
    if config.ca_file:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust(made, "vllm.ca-file", config.ca_file)
    else:
        made = ssl.create_default_context()
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.insecure_skip_verify:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if config.cert_file:
        identify(made, ("vllm.cert-file", config.cert_file), ("vllm.key-file", config.key_file))
    return made
