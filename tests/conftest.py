"""What many tests share: a certificate authority, a log that can be read back, recordings, an exposition of vLLM's."""

import datetime as dt
import functools
import io
import ipaddress
import logging
import signal
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kvpressure import log, recording
from kvpressure.config import LogConfig

# A shell's background job ignores interrupts, and so would all that tests start; some of it is to hear of one.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Authority:
    """Issues certificates into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test authority")
        self._own = self._build(self._name, self._key, [], authority=True)
        self.file = str(folder / "ca.pem")
        Path(self.file).write_bytes(_pem(self._own))

    def issue(self, name: str, *hosts: str) -> tuple[str, str]:
        """The PEM files of a new certificate and its key; `hosts` are host names and IP addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        cert = self._build(_name(name), key, [_host(host) for host in hosts], authority=False)
        files = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        files[0].write_bytes(_pem(cert))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        files[1].chmod(0o600)
        return str(files[0]), str(files[1])

    def _build(self, subject, key, hosts, *, authority):
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if authority:
            builder = builder.add_extension(_SIGNS, critical=True)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        return builder.sign(self._key, hashes.SHA256())


_SIGNS = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    crl_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


def _name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text):
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(cert):
    return cert.public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="session")
def authority(tmp_path_factory) -> Authority:
    """An authority that nobody trusts unless told to."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def logged():
    """Everything the process logs, at debug, as the exporter writes it."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.getLogger("asyncio").level
    stream = io.StringIO()
    log.setup(LogConfig(level="debug"), stream)
    yield stream
    root.handlers[:], level, asyncio_level = before
    root.setLevel(level)
    logging.getLogger("asyncio").setLevel(asyncio_level)


# --- recordings -----------------------------------------------------------------------------------------------------

_SERIES = {
    "running": "num_requests_running{%s}",
    "waiting": "num_requests_waiting{%s}",
    "kv_usage": "kv_cache_usage_perc{%s}",
    "awake": 'engine_sleep_state{%s,sleep_state="awake"}',
    "preemptions": "num_preemptions_total{%s}",
    "finished": 'request_success_total{%s,finished_reason="stop"}',
    "tokens": "generation_tokens_total{%s}",
}
_FIXTURES = Path(__file__).parent / "fixtures"
_RECORDINGS = Path(__file__).parents[2] / "shared" / "recordings"


@pytest.fixture(scope="session")
def recorded():
    """The rows of a recording by its name: the whole one, else the thinned one of the fixtures, else a skip."""

    @functools.cache
    def rows(name: str) -> tuple[recording.Row, ...]:
        for folder in (_RECORDINGS / name, _FIXTURES / "recordings" / name):
            if folder.is_dir():
                return tuple(recording.rows(recording.find(str(folder)), pytest.fail))
        pytest.skip(f"there is no recording {name} beside the checkout")

    return rows


@pytest.fixture(scope="session")
def vllm_text():
    """Writes the exposition of one V1 engine; a value of None leaves its series out."""

    def text(model="m", engine="0", **given) -> str:
        labels = f'engine="{engine}",model_name="{model}"'
        values = {"running": 1, "waiting": 0, "kv_usage": 0.5, "preemptions": 0, "finished": 0, "tokens": 0} | given
        lines = [
            f"vllm:{series % labels} {values[name]}" for name, series in _SERIES.items() if values.get(name) is not None
        ]
        gaps = values.get("gaps")
        if gaps is not None:
            name = "vllm:inter_token_latency_seconds"
            lines += [f'{name}_bucket{{{labels},le="{edge}"}} {count}' for edge, count in gaps.items()]
            lines += [f"{name}_count{{{labels}}} {gaps['+Inf']}", f"{name}_sum{{{labels}}} {values.get('gap_sum', 0)}"]
        if values.get("blocks") is not None:
            lines.append(
                f'vllm:cache_config_info{{block_size="16",engine="{engine}",num_gpu_blocks="{values["blocks"]}"}} 1.0'
            )
        return "\n".join(lines) + "\n"

    return text
