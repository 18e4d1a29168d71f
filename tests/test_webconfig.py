# small helpers, named for what they do
import os
import ssl
import time

import pytest
from webdoor import hashed, write

from kvpressure.expose import webconfig
from kvpressure.expose.webfile import SETTLED, WebFile
from kvpressure.settings import ConfigError

HASH = "$2y$04$" + "abcdefghijklmnopqrstuv" + "A" * 31
TLS = "tls_server_config: {cert_file: c, key_file: k"
VERIFY = ", client_ca_file: a, client_auth_type: RequireAndVerifyClientCert"


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
  client_allowed_sans: [prometheus.monitoring, 10.0.0.1]
  min_version: TLS12
  max_version: TLS12
http_server_config:
  http2: false
  headers:
    Content-Security-Policy: default-src 'self'
    Strict-Transport-Security: max-age=31536000
    X-Content-Type-Options: nosniff
    X-Frame-Options: sameorigin
    X-XSS-Protection: ""
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
            allowed_sans=frozenset({"prometheus.monitoring", "10.0.0.1"}),
            minimum=ssl.TLSVersion.TLSv1_2,
            maximum=ssl.TLSVersion.TLSv1_2,
        ),
        users={"alice": HASH.encode()},
        headers={
            "Content-Security-Policy": "default-src 'self'",
            "Strict-Transport-Security": "max-age=31536000",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "sameorigin",
        },
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
                "client_ca_file, min_version, max_version, client_allowed_sans"
            ),
        ),
        (
            TLS + ", client_allowed_sans: [a]}",
            "tls_server_config.client_allowed_sans needs client_auth_type: RequireAndVerifyClientCert",
        ),
        (
            TLS + VERIFY + ", client_allowed_sans: []}",
            "tls_server_config.client_allowed_sans must be a list of at least one name, each as text",
        ),
        (
            TLS + VERIFY + ", client_allowed_sans: a}",
            "tls_server_config.client_allowed_sans must be a list of at least one name, each as text",
        ),
        (
            TLS + VERIFY + ", client_allowed_sans: [a, 1]}",
            "tls_server_config.client_allowed_sans must be a list of at least one name, each as text",
        ),
        (TLS + ", min_version: TLS10}", "tls_server_config.min_version: 'TLS10' is not one of TLS12, TLS13"),
        (TLS + ", min_version: TLS11}", "tls_server_config.min_version: 'TLS11' is not one of TLS12, TLS13"),
        (TLS + ", max_version: TLS11}", "tls_server_config.max_version: 'TLS11' is not one of TLS12, TLS13"),
        (TLS + ", max_version: 1.3}", "tls_server_config.max_version must be text, not '1.3'"),
        (
            TLS + ", min_version: TLS13, max_version: TLS12}",
            "tls_server_config.max_version must not be lower than min_version",
        ),
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
        ("http_server_config: {headers: [a]}", "http_server_config.headers must be a mapping, not list"),
        (
            "http_server_config: {headers: {Server: x}}",
            (
                "http_server_config.headers.Server cannot be configured; those that can are Content-Security-Policy, "
                "Strict-Transport-Security, X-Content-Type-Options, X-Frame-Options, X-XSS-Protection"
            ),
        ),
        (
            "http_server_config: {headers: {X-Frame-Options: DENY}}",
            "http_server_config.headers.X-Frame-Options: 'DENY' is not one of deny, sameorigin",
        ),
        (
            "http_server_config: {headers: {X-Content-Type-Options: sniff}}",
            "http_server_config.headers.X-Content-Type-Options: 'sniff' is not one of nosniff",
        ),
        (
            "http_server_config: {headers: {X-XSS-Protection: 0}}",
            "http_server_config.headers.X-XSS-Protection must be text of one line in ASCII",
        ),
        (
            'http_server_config: {headers: {X-XSS-Protection: "0\\r\\nSet-Cookie: a"}}',
            "http_server_config.headers.X-XSS-Protection must be text of one line in ASCII",
        ),
        ("http_server_config: {http3: 1}", "unknown key http_server_config.http3; known are http2, headers"),
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


UNSUPPORTED = [
    ("rate_limit: {burst: 1}", "rate_limit"),
    *(
        (TLS + f", {key}: {value}}}", f"tls_server_config.{key}")
        for key, value in {
            "cert": "x",
            "key": "x",
            "client_ca": "x",
            "cipher_suites": "[TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]",
            "prefer_server_cipher_suites": "true",
            "curve_preferences": "[X25519]",
        }.items()
    ),
]


@pytest.mark.parametrize(("text", "key"), UNSUPPORTED, ids=[key for _, key in UNSUPPORTED])
def test_unsupported(tmp_path, text, key):
    """Every key that exporter-toolkit knows and kvpressure cannot honour refuses the start, by its name."""
    path = tmp_path / "web.yml"
    path.write_text(text)
    with pytest.raises(ConfigError) as fault:
        webconfig.load(str(path))

    assert str(fault.value) == f"{path}: {key} is not supported by kvpressure; remove it"


def test_every_key_of_the_format_has_its_answer():
    """Each key of exporter-toolkit's format is either read or refused as not supported, and none is both."""
    sections = {"tls_server_config", "http_server_config", "basic_auth_users", "rate_limit"}
    tls = {"cert", "key", "client_ca", "cert_file", "key_file", "client_auth_type", "client_ca_file"}
    tls |= {"client_allowed_sans", "min_version", "max_version", "cipher_suites", "prefer_server_cipher_suites"}
    tls |= {"curve_preferences"}

    assert sorted(webconfig._SECTIONS + webconfig._UNSUPPORTED_SECTIONS) == sorted(sections)
    assert sorted(webconfig._TLS_KEYS + webconfig._UNSUPPORTED_TLS_KEYS) == sorted(tls)
    assert {key for _, key in UNSUPPORTED} == {
        *webconfig._UNSUPPORTED_SECTIONS,
        *(f"tls_server_config.{key}" for key in webconfig._UNSUPPORTED_TLS_KEYS),
    }


def test_unreadable(tmp_path):
    """A file that is missing or no text is refused by name."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"web\.yml: cannot be read: No such file or directory"):
        webconfig.load(str(tmp_path / "web.yml"))
    with pytest.raises(ConfigError, match="binary: is not UTF-8 text"):
        webconfig.load(str(tmp_path / "binary"))


# --- the file while it changes --------------------------------------------------------------------------------------


def test_settings_stay_the_same_object(tmp_path):
    """Asking again costs no reading while the file stays as it is, and a change is there at the next question."""
    path = tmp_path / "web.yml"
    write(path, "")
    file = WebFile(str(path))
    before = file.settings

    assert file.settings is before
    write(path, "http_server_config: {headers: {X-Frame-Options: deny}}")
    assert file.settings.headers == {"X-Frame-Options": "deny"}


def test_half_written(tmp_path):
    """A file that was written a moment ago does not count yet: it may lack the lines that lock the door."""
    path = tmp_path / "web.yml"
    write(path, f"basic_auth_users: {{alice: {HASH}}}")
    file = WebFile(str(path))
    path.write_text("")
    os.utime(path)

    assert list(file.settings.users) == ["alice"]
    path.write_text(f"basic_auth_users: {{bob: {HASH}}}")
    os.utime(path)
    assert list(file.settings.users) == ["alice"]
    time.sleep(SETTLED + 0.1)
    assert list(file.settings.users) == ["bob"]


@pytest.mark.parametrize("broken", ["a: [", "basic_auth_users: {bob: hunter2}", "rate_limit: {}", None])
def test_broken_while_running(tmp_path, logged, broken):
    """A file that cannot be used any more changes nothing and is told once, without what is secret in it."""
    path = tmp_path / "web.yml"
    write(path, f"basic_auth_users: {{alice: {HASH}}}")
    file = WebFile(str(path))
    if broken is None:
        path.unlink()
    else:
        write(path, broken)

    assert [list(file.settings.users) for _ in range(3)] == [["alice"]] * 3
    assert not file._faults._held, "it is read once, not at every question"
    assert logged.getvalue().count('msg="keeping the earlier web configuration"') == 1
    assert "hunter2" not in logged.getvalue()
    write(path, f"basic_auth_users: {{bob: {HASH}}}")
    assert list(file.settings.users) == ["bob"]


@pytest.mark.parametrize(("before", "after"), [(TLS + "}", ""), ("", TLS + "}")])
def test_tls_is_not_switched(tmp_path, logged, before, after):
    """Switching TLS on or off needs a restart: that is said once, it stays as it was, and the rest takes effect."""
    path = tmp_path / "web.yml"
    write(path, before)
    file = WebFile(str(path))
    kept = file.settings.tls
    write(path, f"{after}\nbasic_auth_users: {{alice: {HASH}}}")

    assert [file.settings.tls for _ in range(3)] == [kept] * 3
    assert list(file.settings.users) == ["alice"]
    sentence = 'msg="TLS cannot be switched on or off without a restart; it stays as it was"'
    assert logged.getvalue().count(sentence) == 1


def test_hashes_that_everybody_can_read(tmp_path, logged):
    """A file with users that everybody can read is used, and told of once; without users nothing is said."""
    path = tmp_path / "web.yml"
    write(path, "")
    path.chmod(0o644)
    file = WebFile(str(path))
    assert "everybody" not in logged.getvalue()
    for name in ("alice", "bob"):
        write(path, f"basic_auth_users: {{{name}: {hashed('x')}}}")
        assert list(file.settings.users) == [name]

    assert logged.getvalue().count("everybody can read the hashes of passwords") == 1
    path.chmod(0o640)
    WebFile(str(path))
    assert logged.getvalue().count("everybody can read the hashes of passwords") == 1
