# small helpers, named for what they do
import asyncio
import base64
import shutil
import ssl
import sys
import time
from pathlib import Path

import bcrypt
import pytest

from kvpressure.expose import webconfig
from kvpressure.expose.auth import MAX_REMEMBERED, BasicAuth
from kvpressure.settings import ConfigError

HASH = "$2y$04$" + "abcdefghijklmnopqrstuv" + "A" * 31
TLS = "tls_server_config: {cert_file: c, key_file: k"


def hashed(password, cost=4):
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost))


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


# --- the file -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "# nothing\n", "tls_server_config:\n", "http_server_config: {http2: false}\n"])
def test_nothing_configured(tmp_path, text):
    """A file that sets nothing, and no file at all, mean plain HTTP for everybody."""
    (tmp_path / "web.yml").write_text(text)

    assert webconfig.load(str(tmp_path / "web.yml")) == webconfig.load("") == webconfig.WebSettings()


def test_everything_configured(tmp_path):
    """All supported keys are read, and relative paths start at the file's folder."""
    (tmp_path / "web.yml").write_text(
        f"""
tls_server_config:
  cert_file: server.crt
  key_file: /etc/server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: sub/ca.crt
  min_version: TLS13
http_server_config:
  http2: false
basic_auth_users:
  alice: {HASH}
"""
    )

    assert webconfig.load(str(tmp_path / "web.yml")) == webconfig.WebSettings(
        tls=webconfig.TlsSettings(
            cert_file=f"{tmp_path}/server.crt",
            key_file="/etc/server.key",
            client_ca_file=f"{tmp_path}/sub/ca.crt",
            client_auth=ssl.CERT_REQUIRED,
            minimum=ssl.TLSVersion.TLSv1_3,
        ),
        users={"alice": HASH.encode()},
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "is not YAML in line 1: expected the node content, but found '<stream end>'"),
        ("- a", "must be a mapping, not 'list'"),
        (
            "tls_config: {}",
            "unknown key tls_config; known are tls_server_config, http_server_config, basic_auth_users",
        ),
        ("rate_limit: {burst: 1}", "rate_limit is not supported by kvpressure; remove it"),
        ("tls_server_config: on", "tls_server_config must be a mapping, not bool"),
        ("tls_server_config: {key_file: k}", "tls_server_config.cert_file is missing"),
        ("tls_server_config: {cert_file: c}", "tls_server_config.key_file is missing"),
        (TLS + ", cert_file: 1}", "is not YAML in line 1: the key 'cert_file' stands here a second time"),
        (
            TLS + ", ciphers: x}",
            (
                "unknown key tls_server_config.ciphers; known are cert_file, key_file, client_auth_type, "
                "client_ca_file, min_version"
            ),
        ),
        (TLS + ", cipher_suites: []}", "tls_server_config.cipher_suites is not supported by kvpressure; remove it"),
        (
            TLS + ", client_allowed_sans: [a]}",
            "tls_server_config.client_allowed_sans is not supported by kvpressure; remove it",
        ),
        (TLS + ", min_version: TLS10}", "tls_server_config.min_version: 'TLS10' is not one of TLS12, TLS13"),
        (
            TLS + ", client_auth_type: Maybe}",
            (
                "tls_server_config.client_auth_type: 'Maybe' is not one of NoClientCert, VerifyClientCertIfGiven, "
                "RequireAndVerifyClientCert"
            ),
        ),
        (
            TLS + ", client_auth_type: RequireAnyClientCert}",
            (
                "tls_server_config.client_auth_type: RequireAnyClientCert is not supported, as it verifies nothing; "
                "use RequireAndVerifyClientCert"
            ),
        ),
        (
            TLS + ", client_auth_type: VerifyClientCertIfGiven}",
            "tls_server_config.client_auth_type: VerifyClientCertIfGiven needs client_ca_file",
        ),
        (TLS + ", client_ca_file: a}", "tls_server_config.client_ca_file has no effect without client_auth_type"),
        ("http_server_config: {http2: true}", "http_server_config.http2: only false is supported"),
        (
            "http_server_config: {headers: {}}",
            "http_server_config.headers is not supported by kvpressure; remove it",
        ),
        ("http_server_config: {http3: 1}", "unknown key http_server_config.http3; known are http2"),
        ("basic_auth_users: [a]", "basic_auth_users must be a mapping, not list"),
        ("basic_auth_users: {1: x}", "basic_auth_users: '1' must be a user name, as text without a colon"),
        (
            "basic_auth_users: {alice: hunter2}",
            "basic_auth_users.alice is not a bcrypt hash; make one with: htpasswd -nB alice",
        ),
        (
            f"basic_auth_users: {{alice: {HASH.replace('$04$', '$03$')}}}",
            "basic_auth_users.alice is not a bcrypt hash; make one with: htpasswd -nB alice",
        ),
    ],
)
def test_refused(tmp_path, text, sentence):
    """What is unknown, unsupported or malformed is refused in one sentence that names file and key."""
    path = tmp_path / "web.yml"
    path.write_text(text)
    with pytest.raises(ConfigError) as fault:
        webconfig.load(str(path))

    assert str(fault.value) == f"{path}: {sentence}"


def test_unreadable(tmp_path):
    """A file that is missing or no text is refused by name."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"web\.yml: cannot be read: No such file or directory"):
        webconfig.load(str(tmp_path / "web.yml"))
    with pytest.raises(ConfigError, match="binary: is not UTF-8 text"):
        webconfig.load(str(tmp_path / "binary"))


# --- TLS ------------------------------------------------------------------------------------------------------------


def test_missing_certificate():
    """A certificate file that does not exist refuses the start, and the sentence names file and key."""
    with pytest.raises(ConfigError) as fault:
        webconfig.ServerTls("web.yml", webconfig.TlsSettings("/no/cert", "/no/key"))

    assert (
        str(fault.value) == "web.yml: tls_server_config.cert_file: /no/cert cannot be read: no such file or directory"
    )


def test_key_of_another_certificate(authority):
    """A key that does not belong to the certificate refuses the start."""
    cert, _ = authority.issue("one")
    _, key = authority.issue("two")
    with pytest.raises(ConfigError, match="are not a PEM certificate and its unencrypted key"):
        webconfig.ServerTls("web.yml", webconfig.TlsSettings(cert, key))


async def shown_to_client(context, authority, name=None):
    """The common name in the certificate that a fresh handshake with `context` shows."""
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0, ssl=context)
    client = ssl.create_default_context(cafile=authority.file)
    client.check_hostname = name is not None
    port = server.sockets[0].getsockname()[1]
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name or "127.0.0.1")
    subject = writer.get_extra_info("peercert")["subject"]
    writer.transport.abort()
    server.close()
    await asyncio.sleep(0.01)
    return subject[0][0][1]


def test_certificates_are_read_again(tmp_path, authority, logged):
    """A renewed certificate is shown at the next handshake, with and without a server name; a broken one never."""
    files = tmp_path / "cert", tmp_path / "key"

    def renew(name):
        for new, file in zip(authority.issue(name, "exporter.test"), files, strict=True):
            shutil.copy(new, file)

    async def main():
        renew("old")
        tls = webconfig.ServerTls("web.yml", webconfig.TlsSettings(str(files[0]), str(files[1])))
        seen = [await shown_to_client(tls.context, authority)]
        renew("new")
        seen.append(await shown_to_client(tls.context, authority))
        files[0].write_text("broken")
        seen.append(await shown_to_client(tls.context, authority, "exporter.test"))
        renew("newest")
        seen.append(await shown_to_client(tls.context, authority, "exporter.test"))
        return seen

    assert asyncio.run(main()) == ["old", "new", "new", "newest"]
    assert logged.getvalue().count('msg="certificate files read again"') == 2
    assert logged.getvalue().count('msg="keeping the earlier certificate"') == 1


# --- basic auth -----------------------------------------------------------------------------------------------------


def asked(users, *headers, path="web.yml"):
    async def main():
        auth = BasicAuth(path, users)
        answers = [await auth.allows(header) for header in headers]
        auth.close()
        return answers

    return asyncio.run(main())


def test_who_is_let_in():
    """Only a known user with the right password is let in, in whatever case the scheme is written."""
    users = {"alice": hashed("sesame"), "bob": hashed("päss:wörd")}
    good = [basic("alice", "sesame"), basic("alice", "sesame").replace("Basic", "bAsIc"), basic("bob", "päss:wörd")]
    bad = [
        "",
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"alice").decode(),
        "Basic " + base64.b64encode(b"\xff:sesame").decode(),
        "Bearer sesame",
        basic("alice", ""),
        basic("alice", "Sesame"),
        basic("alice", "se\0same"),
        basic("bob", "sesame"),
        basic("carol", "sesame"),
        basic("", "sesame"),
    ]

    assert asked(users, *good) == [True] * len(good)
    assert asked(users, *bad) == [False] * len(bad)
    assert asked(users, *good, *bad, *good, *bad) == ([True] * len(good) + [False] * len(bad)) * 2


def test_nobody_configured():
    """Without users everybody is let in."""
    assert asked({}, "", basic("a", "b")) == [True, True]


def test_long_password():
    """A password longer than the 72 bytes that bcrypt looks at is checked as htpasswd does, instead of failing."""
    assert asked({"alice": hashed("x" * 72)}, basic("alice", "x" * 100), basic("alice", "x" * 71)) == [True, False]


def test_checks_are_remembered_and_never_block():
    """A check runs beside the event loop; the same login again costs nothing, a wrong user as much as a password."""

    async def main():
        auth = BasicAuth("web.yml", {"alice": hashed("sesame", 10)})
        took, longest_stall = [], 0.0
        done = False

        async def watch():
            nonlocal longest_stall
            while not done:
                before = time.monotonic()
                await asyncio.sleep(0.002)
                longest_stall = max(longest_stall, time.monotonic() - before)

        watcher = asyncio.create_task(watch())
        for login in (("alice", "sesame"), ("alice", "sesame"), ("alice", "wrong"), ("nobody", "wrong")):
            tries = []
            for _ in range(1 if login[1] == "sesame" else 3):
                before = time.monotonic()
                await auth.allows(basic(*login))
                tries.append(time.monotonic() - before)
            took.append(min(tries))
        done = True
        await watcher
        auth.close()
        return took, longest_stall

    (first, again, wrong, unknown), longest_stall = asyncio.run(main())

    assert again < first / 10
    assert 0.4 < unknown / wrong < 2.5
    assert longest_stall < first / 2


def test_memory_of_checks_is_bounded():
    """However many users log in, a bounded number of successes is remembered, and no password among them."""
    one = hashed("sesame")

    async def main():
        auth = BasicAuth("web.yml", {f"user{n}": one for n in range(MAX_REMEMBERED + 10)})
        for n in range(MAX_REMEMBERED + 10):
            assert await auth.allows(basic(f"user{n}", "sesame"))
        auth.close()
        return auth._remembered

    remembered = asyncio.run(main())

    assert len(remembered) == MAX_REMEMBERED
    assert all(len(key) == 32 for key in remembered)


def test_users_are_read_again(tmp_path, logged):
    """Users that are added or removed take effect at the next request; a broken file changes nothing."""
    path = tmp_path / "web.yml"

    def write(**users):
        path.write_text("basic_auth_users: {" + ", ".join(f"{u}: {h.decode()}" for u, h in users.items()) + "}")

    async def main():
        write(alice=hashed("a"))
        auth = BasicAuth(str(path), webconfig.load(str(path)).users)
        answers = [await auth.allows(basic("alice", "a"))]
        write(bob=hashed("bb"), carol=hashed("c"))
        answers += [await auth.allows(basic("alice", "a")), await auth.allows(basic("bob", "bb"))]
        path.write_text("basic_auth_users: {bob: nonsense}")
        answers += [await auth.allows(basic("bob", "bb")), await auth.allows("")]
        path.unlink()
        answers += [await auth.allows(basic("bob", "bb")), await auth.allows("")]
        auth.close()
        return answers

    assert asyncio.run(main()) == [True, False, True, True, False, True, False]
    assert "nonsense" not in logged.getvalue()
    assert logged.getvalue().count('msg="users read again"') == 1


def test_bcrypt_is_missing(monkeypatch):
    """Without the bcrypt library users refuse the start, with the command that installs it."""
    monkeypatch.setitem(sys.modules, "bcrypt", None)
    with pytest.raises(ConfigError) as fault:
        BasicAuth("web.yml", {"alice": HASH.encode()})

    assert str(fault.value) == (
        "web.yml: basic_auth_users needs the bcrypt library; install it with: pip install bcrypt"
    )
    BasicAuth("web.yml", {}).close()


def test_no_secret_reaches_the_log(tmp_path, logged):
    """Neither a user name, nor a password, nor a hash is logged when a login is refused."""
    path = tmp_path / "web.yml"
    path.write_text("")
    asked({"alice": hashed("sesame")}, basic("m4llory", "c4n4ry"), basic("m4llory", "c4n4ry"), path=str(path))
    text = logged.getvalue()

    assert text.count("a request with a wrong user name or password was refused") == 1
    assert not [word for word in ("m4llory", "c4n4ry", "$2", "alice") if word in text]
    assert Path(path).exists()
