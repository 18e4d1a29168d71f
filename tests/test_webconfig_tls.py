# small helpers, named for what they do
import asyncio
import contextlib
import datetime as dt
import ipaddress
import os
import shutil
import socket
import ssl
import struct
import subprocess
from pathlib import Path

import pytest
from conftest import Authority
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.x509.oid import NameOID
from webdoor import ask, hashed, issued, running, status, trusting, write

from kvpressure.client import context as client_context
from kvpressure.client import headers as client_headers
from kvpressure.config import VllmConfig
from kvpressure.credentials import FileFault, identify
from kvpressure.expose.webfile import WebFile
from kvpressure.expose.webtls import ServerTls
from kvpressure.settings import ConfigError

TLS12, TLS13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


def tls_section(cert, key, **more):
    lines = [f"  {name}: {value}" for name, value in {"cert_file": cert, "key_file": key, **more}.items()]
    return "\n".join(["tls_server_config:", *lines]) + "\n"


def mutual(authority):
    return {"client_ca_file": authority.file, "client_auth_type": "RequireAndVerifyClientCert"}


@pytest.fixture
def web(tmp_path):
    return tmp_path / "web.yml"


@pytest.fixture
def server(authority):
    """The files of a certificate and its key for a server."""
    return issued(authority, "exporter", "127.0.0.1")


async def version(port, context):
    """The version of TLS that a handshake agrees on."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    agreed = writer.get_extra_info("ssl_object").version()
    writer.transport.abort()
    return agreed


async def common_name(port, context):
    """The common name in the certificate that a server shows."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    subject = writer.get_extra_info("peercert")["subject"]
    writer.transport.abort()
    return subject[0][0][1]


# --- which TLS ------------------------------------------------------------------------------------------------------


def hello(number):
    """The first message of a client that speaks at most this version, with what servers of each version ask for."""

    def extension(kind, content):
        return struct.pack(">HH", kind, len(content)) + content

    extensions = (
        extension(0x000A, b"\x00\x04\x00\x17\x00\x1d")  # groups: P-256, X25519
        + extension(0x000B, b"\x01\x00")  # points: uncompressed
        + extension(0x000D, b"\x00\x06\x04\x03\x08\x04\x04\x01")  # signatures: ECDSA, PSS and PKCS 1 over SHA-256
    )
    ciphers = b"\xc0\x2b\xc0\x2f\xc0\x09\xc0\x13\xc0\x0a\xc0\x14\x00\x2f\x00\x35"
    body = struct.pack(">H", number) + b"r" * 32 + b"\x00"
    body += struct.pack(">H", len(ciphers)) + ciphers + b"\x01\x00"
    body += struct.pack(">H", len(extensions)) + extensions
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + struct.pack(">H", len(message)) + message


async def first_answer(port, number):
    """The first record that answers such a hello; asyncio closes the connection before OpenSSL's alert is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(hello(number))
    try:
        return await reader.read(6)
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("number", [0x0300, 0x0301, 0x0302])
def test_old_versions_are_refused(web, server, number):
    """SSL 3.0, TLS 1.0 and TLS 1.1 get no hello of the server; the very same hello with TLS 1.2 gets one."""
    write(web, tls_section(*server))

    async def main():
        async with running(web) as (_, port):
            assert (await first_answer(port, 0x0303))[:1] == b"\x16"
            assert (await first_answer(port, number))[:1] in (b"", b"\x15")

    asyncio.run(main())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
@pytest.mark.parametrize(
    ("flag", "passes"), [("-tls1", False), ("-tls1_1", False), ("-tls1_2", True), ("-tls1_3", True)]
)
def test_old_versions_of_a_real_client(web, server, flag, passes):
    """A client that is willing to speak an old version, and nothing else, gets no connection."""
    write(web, tls_section(*server))

    async def main():
        async with running(web) as (_, port):
            command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", flag, "-cipher", "ALL:@SECLEVEL=0"]
            asked = await asyncio.create_subprocess_exec(*command, stdin=-3, stdout=-3, stderr=-3)
            return await asked.wait()

    assert (asyncio.run(main()) == 0) is passes


@pytest.mark.parametrize(
    ("limits", "agreed"),
    [
        ({}, ["TLSv1.3", "TLSv1.2", "TLSv1.3"]),
        ({"min_version": "TLS13"}, ["TLSv1.3", None, "TLSv1.3"]),
        ({"max_version": "TLS12"}, ["TLSv1.2", "TLSv1.2", None]),
    ],
)
def test_versions(web, server, authority, limits, agreed):
    """Both ends of the range hold: for a client that speaks both versions, the lower only, the higher only."""
    write(web, tls_section(*server, **limits))
    clients = [trusting(authority), trusting(authority, highest=TLS12), trusting(authority, lowest=TLS13)]

    async def main():
        async with running(web) as (_, port):
            seen = []
            for context in clients:
                try:
                    seen.append(await version(port, context))
                except (ssl.SSLError, ConnectionError):
                    seen.append(None)
            return seen

    assert asyncio.run(main()) == agreed


def test_every_path_is_behind_tls(web, server, authority):
    """Without TLS nothing is answered, the probe of health included."""
    write(web, tls_section(*server))

    async def main():
        async with running(web) as (_, port):
            assert [await status(port, path) for path in ("/-/healthy", "/metrics")] == [0, 0]
            assert await status(port, "/-/healthy", tls=trusting(authority)) == 200

    asyncio.run(main())


# --- certificates of clients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("highest", [TLS12, TLS13])
def test_client_certificates(web, server, authority, tmp_path, highest):
    """Where one is required, none and one of another authority are refused on every path, and the right one passes."""
    write(web, tls_section(*server, **mutual(authority)))
    other = Authority(tmp_path)
    shown = [None, issued(other, "stranger"), issued(authority, "scraper")]

    async def main():
        async with running(web) as (_, port):
            return [
                [
                    await status(port, path, tls=trusting(authority, shows=shows, highest=highest))
                    for path in ("/-/healthy", "/metrics")
                ]
                for shows in shown
            ]

    assert asyncio.run(main()) == [[0, 0], [0, 0], [200, 200]]


def test_verify_if_given(web, server, authority, tmp_path):
    """VerifyClientCertIfGiven lets a client without a certificate in, and one with a wrong one not."""
    asked = {"client_ca_file": authority.file, "client_auth_type": "VerifyClientCertIfGiven"}
    write(web, tls_section(*server, **asked))
    shown = [None, issued(Authority(tmp_path), "stranger"), issued(authority, "scraper")]

    async def main():
        async with running(web) as (_, port):
            return [await status(port, tls=trusting(authority, shows=shows)) for shows in shown]

    assert asyncio.run(main()) == [200, 0, 200]


def named(authority, *names):
    """A client's certificate with these alternative names."""
    built = authority._build
    try:
        authority._build = lambda subject, key, _hosts, **how: built(subject, key, list(names), **how)
        return issued(authority, "named")
    finally:
        authority._build = built


@pytest.mark.parametrize(
    "client",
    [
        ([x509.DNSName("prometheus.monitoring")], True),
        ([x509.DNSName("other"), x509.RFC822Name("sre@example.test")], True),
        ([x509.UniformResourceIdentifier("spiffe://cluster/ns/monitoring")], True),
        ([x509.IPAddress(ipaddress.ip_address("10.0.0.1"))], True),
        ([x509.IPAddress(ipaddress.ip_address("fd00::1"))], True),
        ([x509.DNSName("prometheus.monitoring.evil")], False),
        ([x509.DNSName("PROMETHEUS.monitoring")], False),
        ([x509.DNSName("*.monitoring")], False),
        ([x509.IPAddress(ipaddress.ip_address("10.0.0.2"))], False),
        ([], False),
    ],
)
@pytest.mark.parametrize("highest", [TLS12, TLS13])
def test_allowed_sans(web, server, authority, client, highest):
    """Of clients with a good certificate only those are answered that have one of the names, to the letter."""
    allowed = "[prometheus.monitoring, sre@example.test, 'spiffe://cluster/ns/monitoring', 10.0.0.1, 'fd00::1']"
    write(web, tls_section(*server, **mutual(authority), client_allowed_sans=allowed))
    names, passes = client
    context = trusting(authority, shows=named(authority, *names), highest=highest)

    async def main():
        async with running(web) as (_, port):
            return [await status(port, path, tls=context) for path in ("/-/healthy", "/metrics")]

    assert asyncio.run(main()) == ([200, 200] if passes else [0, 0])


def resume(port, context, session=None):
    """One blocking request; its status (0: none) and the session with which the next one can skip most of it."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, session=session) as tls,
        ):
            tls.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            head = tls.recv(12)
            return int(head[9:12]) if head else 0, tls.session, tls.session_reused
    except OSError:
        return 0, session, None


@pytest.mark.parametrize("highest", [TLS12, TLS13])
def test_a_resumed_session_is_no_way_around(web, server, authority, highest):
    """A client that resumes a session is checked anew: after a change of the allowed names it is not answered."""
    files = named(authority, x509.DNSName("scraper.test"))
    context = trusting(authority, shows=files, highest=highest)
    write(web, tls_section(*server, **mutual(authority), client_allowed_sans="[scraper.test]"))

    async def main():
        async with running(web) as (_, port):
            first, session, _ = await asyncio.to_thread(resume, port, context)
            again, _, reused = await asyncio.to_thread(resume, port, context, session)
            write(web, tls_section(*server, **mutual(authority), client_allowed_sans="[other.test]"))
            after, _, _ = await asyncio.to_thread(resume, port, context, session)
            return first, again, reused, after

    assert asyncio.run(main()) == (200, 200, True, 0)


# --- without a restart ----------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def polling(port, context):
    """Polls all the while, on a new connection each time; gives what it got."""
    seen, polled = [], asyncio.Event()

    async def poll():
        while True:
            seen.append(await status(port, tls=context))
            polled.set()
            await asyncio.sleep(0.005)

    task = asyncio.create_task(poll())
    try:
        yield seen
        for _ in range(2):  # what came last has been seen too
            polled.clear()
            await polled.wait()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_the_section_changes_while_a_client_polls(web, authority, tmp_path):
    """Paths, versions, client certificates and their authority take effect at once; who may come is never refused."""
    old, new = (issued(authority, name, "127.0.0.1") for name in ("old", "new"))
    other = Authority(tmp_path)
    both, ours = tmp_path / "both.pem", Path(authority.file).read_text()
    both.write_text(ours + Path(other.file).read_text())
    scraper, friend = issued(authority, "scraper"), issued(other, "friend")
    write(web, tls_section(*old))

    async def main():
        async with running(web) as (_, port), polling(port, trusting(authority, shows=scraper)) as seen:
            anybody = trusting(authority)
            assert await common_name(port, anybody) == "old"
            assert await status(port, tls=trusting(authority, highest=TLS12)) == 200
            write(web, tls_section(*new))
            assert await common_name(port, anybody) == "new"
            write(web, tls_section(*new, min_version="TLS13"))
            assert await status(port, tls=trusting(authority, highest=TLS12)) == 0
            assert await status(port, tls=anybody) == 200
            write(web, tls_section(*new, max_version="TLS12"))
            assert await version(port, anybody) == "TLSv1.2"
            assert await status(port, tls=trusting(authority, lowest=TLS13)) == 0
            write(web, tls_section(*new, **mutual(authority)))
            assert await status(port, tls=anybody) == 0
            assert await status(port, tls=trusting(authority, shows=friend)) == 0
            write(web, tls_section(*new, **mutual(authority) | {"client_ca_file": str(both)}))
            assert await status(port, tls=trusting(authority, shows=friend)) == 200
            assert await status(port, tls=anybody) == 0
            write(both, ours)  # the file itself, and not its path
            assert await status(port, tls=trusting(authority, shows=friend)) == 0
            write(web, tls_section(*new))
            assert await status(port, tls=anybody) == 200
            return seen

    seen = asyncio.run(main())
    assert len(seen) > 5
    assert set(seen) == {200}


def test_what_is_broken_changes_nothing(web, authority, tmp_path, logged):
    """A certificate that cannot be used, and a section that is wrong, keep the earlier ones; each is said once."""
    files = tmp_path / "cert", tmp_path / "key"

    def renew(name):
        for new, file in zip(issued(authority, name, "127.0.0.1"), files, strict=True):
            shutil.copy(new, file)

    async def main():
        renew("one")
        write(web, tls_section(*files, **mutual(authority)))
        context = trusting(authority, shows=issued(authority, "scraper"))
        async with running(web) as (_, port), polling(port, context) as seen:
            names = [await common_name(port, context)]
            renew("two")
            names.append(await common_name(port, context))
            files[0].write_text("broken")
            names.append(await common_name(port, context))
            write(web, tls_section(*files, min_version="TLS10"))
            names.append(await common_name(port, context))
            write(web, tls_section("/no/cert", files[1]))
            names.append(await common_name(port, context))
            assert await status(port, tls=trusting(authority)) == 0, "the demand for a certificate is gone"
            write(web, tls_section(*files, **mutual(authority)))
            renew("three")
            names.append(await common_name(port, context))
            return names, seen

    names, seen = asyncio.run(main())
    assert names == ["one", "two", "two", "two", "two", "three"]
    assert set(seen) == {200}
    assert logged.getvalue().count('msg="keeping the earlier TLS settings"') == 1
    assert logged.getvalue().count('msg="keeping the earlier web configuration"') == 1


def test_tls_cannot_be_taken_off(web, server, authority):
    """A file that loses its TLS section goes on with TLS, and one that gains it goes on without."""
    write(web, tls_section(*server, **mutual(authority)))
    context = trusting(authority, shows=issued(authority, "scraper"))

    async def main():
        async with running(web) as (_, port):
            assert await status(port, tls=context) == 200
            write(web, "")
            assert await status(port, tls=context) == 200
            assert await status(port) == 0
            assert await status(port, tls=trusting(authority)) == 0
        write(web, "")
        async with running(web) as (_, port):
            write(web, tls_section(*server))
            assert await status(port) == 200

    asyncio.run(main())


# --- files that are refused -----------------------------------------------------------------------------------------


def start(web, cert, key, **more):
    write(web, tls_section(cert, key, **more))
    return ServerTls(WebFile(str(web)))


def test_missing_certificate(web):
    """A certificate file that does not exist refuses the start, and the sentence names file and key."""
    with pytest.raises(ConfigError) as fault:
        start(web, "/no/cert", "/no/key")

    assert str(fault.value) == (
        f"{web}: tls_server_config.cert_file: /no/cert cannot be read: no such file or directory"
    )


def test_key_of_another_certificate(web, authority):
    """A key that does not belong to the certificate refuses the start."""
    cert, _ = issued(authority, "one")
    _, key = issued(authority, "two")
    with pytest.raises(ConfigError, match="are not a PEM certificate and its unencrypted key"):
        start(web, cert, key)


def test_authority_that_is_none(web, server, tmp_path):
    """A file of authorities without a certificate refuses the start."""
    (tmp_path / "ca").write_text("nothing")
    with pytest.raises(ConfigError, match=r"client_ca_file: .*/ca holds no usable PEM certificate"):
        start(web, *server, client_ca_file=tmp_path / "ca", client_auth_type="RequireAndVerifyClientCert")


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o666, 0o602, 0o777])
def test_key_of_everybody(web, authority, tmp_path, mode):
    """A key that others can read or write is refused, also through the symbolic links that Kubernetes makes."""
    cert, key = issued(authority, "open")
    folder = tmp_path / "..2026_11_30"
    folder.mkdir()
    shutil.copy(key, folder / "tls.key")
    (tmp_path / "..data").symlink_to(folder.name)
    (tmp_path / "tls.key").symlink_to("..data/tls.key")
    (folder / "tls.key").chmod(mode)
    with pytest.raises(ConfigError) as fault:
        start(web, cert, tmp_path / "tls.key")

    assert str(fault.value) == (
        f"{web}: tls_server_config.key_file: everybody can read or write the key {tmp_path}/tls.key; chmod 640 it "
        "(in Kubernetes: defaultMode: 0440 and fsGroup)"
    )


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
def test_key_of_a_group(web, authority, mode):
    """A key that only its owner or a group can read is taken, and a certificate that everybody can read too."""
    cert, key = issued(authority, "kept")
    Path(key).chmod(mode)
    Path(cert).chmod(0o644)

    assert start(web, cert, key).current()


def test_a_broken_file_is_tried_once(web, server, logged):
    """A certificate that cannot be used any more is not read at every handshake: that would help whoever floods."""
    tls = start(web, *server)
    before = tls.current()
    Path(server[0]).write_text("broken")

    assert [tls.current() for _ in range(3)] == [before] * 3
    assert logged.getvalue().count('msg="keeping the earlier TLS settings"') == 1
    assert not tls._faults._held


def test_key_that_becomes_everybodys(web, server, authority, logged):
    """A key that is opened up while the exporter runs keeps the earlier one until its mode is put right."""
    cert, key = (Path(file) for file in server)
    open_to = {"everybody": 0o644, "a group": 0o640}

    async def main():
        write(web, tls_section(cert, key))
        async with running(web) as (_, port):
            names = [await common_name(port, trusting(authority))]
            for new, file in zip(issued(authority, "renewed", "127.0.0.1"), (cert, key), strict=True):
                shutil.copy(new, file)
            key.chmod(open_to["everybody"])
            names.append(await common_name(port, trusting(authority)))
            key.chmod(open_to["a group"])
            names.append(await common_name(port, trusting(authority)))
            return names

    assert asyncio.run(main()) == ["exporter", "exporter", "renewed"]
    assert logged.getvalue().count("everybody can read or write the key") == 1


def self_made(folder, key, issuer_key=None):
    """Files of a certificate for any kind of key."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "weak")])
    now = dt.datetime.now(dt.UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer")]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(issuer_key or ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    )
    pem, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "cert").write_bytes(cert.public_bytes(pem))
    (folder / "key").write_bytes(key.private_bytes(pem, kind, serialization.NoEncryption()))
    (folder / "key").chmod(0o600)
    return str(folder / "cert"), str(folder / "key")


WEAK = {
    "RSA 1024": lambda: rsa.generate_private_key(65537, 1024),  # noqa: S505  # to be refused
    "RSA 1536": lambda: rsa.generate_private_key(65537, 1536),  # noqa: S505  # to be refused
    "DSA 1024": lambda: dsa.generate_private_key(1024),  # noqa: S505  # to be refused
    "EC 192": lambda: ec.generate_private_key(ec.SECP192R1()),
}


@pytest.mark.parametrize("kind", WEAK)
@pytest.mark.filterwarnings("ignore")  # the library that makes the keys warns of some of them
def test_weak_key(web, tmp_path, kind):
    """A key of less than 112 bits of strength is refused, with a sentence that says what is enough."""
    cert, key = self_made(tmp_path, WEAK[kind]())
    with pytest.raises(ConfigError) as fault:
        start(web, cert, key)

    assert str(fault.value) == (
        f"{web}: tls_server_config.cert_file: {cert} has a key that is too weak; make one with an RSA key of 2048 bits "
        "or an EC key of 256 bits or more, signed with SHA-256"
    )


@pytest.mark.parametrize("kind", ["RSA 2048", "EC 256"])
def test_strong_key(web, tmp_path, kind):
    """What the sentence says is enough is enough."""
    strong = {
        "RSA 2048": lambda: rsa.generate_private_key(65537, 2048),
        "EC 256": lambda: ec.generate_private_key(ec.SECP256R1()),
    }

    assert start(web, *self_made(tmp_path, strong[kind]())).current()


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the Python library signs with no weak hash")
@pytest.mark.parametrize("digest", ["-sha1", "-md5"])
def test_weak_signature(web, tmp_path, digest):
    """A certificate that is signed over SHA-1 or MD5 is refused."""
    folder = tmp_path
    openssl(
        folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca", "-subj", "/CN=a"
    )
    openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-keyout", "key", "-out", "asked", "-subj", "/CN=b")
    sign = ("x509", "-req", digest, "-in", "asked", "-CA", "ca", "-CAkey", "ca.key", "-CAcreateserial", "-out", "cert")
    openssl(folder, *sign)
    (folder / "key").chmod(0o600)
    with pytest.raises(ConfigError, match="/cert is signed with a hash that is too weak; make one with"):
        start(web, folder / "cert", folder / "key")


@pytest.mark.filterwarnings("ignore")
def test_weak_key_while_running(web, server, authority, tmp_path, logged):
    """A certificate that is renewed with a weak key keeps the earlier one."""
    write(web, tls_section(*server))

    async def main():
        async with running(web) as (_, port):
            assert await common_name(port, trusting(authority)) == "exporter"
            write(web, tls_section(*self_made(tmp_path, WEAK["RSA 1024"]())))
            return await common_name(port, trusting(authority))

    assert asyncio.run(main()) == "exporter"
    assert "has a key that is too weak" in logged.getvalue()


@pytest.mark.filterwarnings("ignore")
def test_weak_certificate_of_a_client(web, server, authority, tmp_path):
    """A client whose certificate has a weak key is refused, though the right authority has signed it."""
    write(web, tls_section(*server, **mutual(authority)))
    weak = rsa.generate_private_key(65537, 1024)  # noqa: S505  # to be refused
    cert = authority._build(authority._name, weak, [], authority=False)
    pem = serialization.Encoding.PEM
    (tmp_path / "cert").write_bytes(cert.public_bytes(pem))
    kind = serialization.PrivateFormat.PKCS8
    (tmp_path / "key").write_bytes(weak.private_bytes(pem, kind, serialization.NoEncryption()))
    context = trusting(authority)
    context.set_ciphers("DEFAULT:@SECLEVEL=1")
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")

    async def main():
        async with running(web) as (_, port):
            return await status(port, tls=context)

    assert asyncio.run(main()) == 0


# --- the client's side of the same rules ----------------------------------------------------------------------------


def test_key_of_the_client(authority, tmp_path):
    """The key that is shown to vLLM is held to the same: nobody else's, and not weak."""
    cert, key = issued(authority, "to_vllm")
    config = VllmConfig(cert_file=cert, key_file=key)

    assert client_context(config)
    Path(key).chmod(0o644)
    with pytest.raises(FileFault, match=r"vllm\.key-file: everybody can read or write the key .*; chmod 640 it"):
        client_context(config)
    cert, key = self_made(tmp_path, WEAK["RSA 1024"]())
    with pytest.raises(FileFault, match=r"vllm\.cert-file: .*/cert has a key that is too weak"):
        client_context(VllmConfig(cert_file=cert, key_file=key))


@pytest.mark.filterwarnings("ignore")
def test_a_weak_key_is_refused_by_a_lenient_context(tmp_path):
    """A key is judged the same whatever level of security the system's OpenSSL is set to."""
    cert, key = self_made(tmp_path, WEAK["RSA 1024"]())
    lenient = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    lenient.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.raises(FileFault, match=r"x: .*/cert has a key that is too weak"):
        identify(lenient, ("x", cert), ("y", key))


def test_token_of_a_secret(tmp_path):
    """A token in a file as Kubernetes mounts Secrets by default (mode 0644) is taken."""
    token = tmp_path / "token"
    token.write_text("t")
    os.chmod(token, 0o644)  # noqa: PTH101

    assert ("Authorization", "Bearer t") in client_headers(VllmConfig(bearer_token_file=str(token)))


# --- the headers ----------------------------------------------------------------------------------------------------


def test_headers(web):
    """The headers of the file are in every answer, a refusal too, change without a restart, and replace ours."""
    write(web, "http_server_config: {headers: {X-Frame-Options: sameorigin, Strict-Transport-Security: max-age=1}}")

    async def main():
        async with running(web) as (_, port):
            for path, answered in (("/-/healthy", 200), ("/nowhere", 404)):
                code, headers = await ask(port, path)
                assert code == answered
                assert headers["X-Frame-Options"] == "sameorigin"
                assert headers["Strict-Transport-Security"] == "max-age=1"
                assert headers["X-Content-Type-Options"] == "nosniff"
            write(web, f"basic_auth_users: {{alice: {hashed('a')}}}")
            code, headers = await ask(port, "/metrics")
            assert (code, headers["X-Frame-Options"]) == (401, "DENY")
            assert "Strict-Transport-Security" not in headers

    asyncio.run(main())
