# small helpers, named for what they do
import asyncio
import base64
import itertools
import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import bcrypt
import pytest
from webdoor import ask, basic, hashed, running, status, write

from kvpressure.expose.auth import MAX_CHECKS, MAX_CHECKS_EACH, MAX_REMEMBERED, Answer, BasicAuth
from kvpressure.expose.webfile import WebFile
from kvpressure.settings import ConfigError

ALLOWED, REFUSED, BUSY = Answer.ALLOWED, Answer.REFUSED, Answer.BUSY
HEALTHY = "/-/healthy"
SECURITY = Path(__file__).parents[1] / "SECURITY.md"


def users(path, **hashes):
    """Write a file with these users and their hashes."""
    write(path, "basic_auth_users: {" + ", ".join(f"{name}: {value}" for name, value in hashes.items()) + "}")
    path.chmod(0o600)


@pytest.fixture
def web(tmp_path):
    return tmp_path / "web.yml"


@pytest.fixture
def checked(monkeypatch):
    """The passwords that bcrypt is asked about, in their order; it answers as ever."""
    asked, really = [], bcrypt.checkpw

    def check(password, value):
        asked.append((password, value))
        return really(password, value)

    monkeypatch.setattr(bcrypt, "checkpw", check)
    return asked


@pytest.fixture
def held(monkeypatch):
    """While it is not set, bcrypt answers nothing."""
    go, really = threading.Event(), bcrypt.checkpw

    def check(password, value):
        go.wait(20)
        return really(password, value)

    monkeypatch.setattr(bcrypt, "checkpw", check)
    yield go
    go.set()


def asked(web, *headers):
    async def main():
        auth = BasicAuth(WebFile(str(web)))
        answers = [await auth.answer(header, "client") for header in headers]
        auth.close()
        return answers

    return asyncio.run(main())


# --- who is let in --------------------------------------------------------------------------------------------------


def test_who_is_let_in(web):
    """Only a known user with the right password is let in, in whatever case the scheme is written."""
    users(web, alice=hashed("sesame"), bob=hashed("päss:wörd"))
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

    assert asked(web, *good) == [ALLOWED] * len(good)
    assert asked(web, *bad) == [REFUSED] * len(bad)
    assert asked(web, *good, *bad, *good, *bad) == ([ALLOWED] * len(good) + [REFUSED] * len(bad)) * 2


def test_an_unknown_user_with_the_password_of_another(web):
    """A stranger is refused with every password that opens the door for somebody, remembered or not."""
    users(web, alice=hashed("a"), bob=hashed("b"))
    known = [basic("alice", "a"), basic("bob", "b")]
    strange = [basic(f"stranger{n}", password) for n in range(8) for password in "ab"]

    assert asked(web, *known, *strange, *known, *strange) == 2 * ([ALLOWED] * 2 + [REFUSED] * 16)


def test_the_command_that_makes_a_hash(web):
    """What SECURITY.md tells to run asks for a password and prints a hash with which its user is let in."""
    words = shlex.split(re.search(r"^python3 (-c .+)$", SECURITY.read_text(encoding="utf-8"), re.MULTILINE)[1])
    # Without a terminal the password is read from stdin.
    command = [sys.executable, "-W", "ignore", *words]
    said = subprocess.run(command, check=True, capture_output=True, text=True, input="sesame\n", start_new_session=True)
    users(web, alice=said.stdout.split()[-1])

    assert asked(web, basic("alice", "sesame"), basic("alice", "other")) == [ALLOWED, REFUSED]


def test_nobody_configured(web):
    """Without users everybody is let in."""
    write(web, "")

    assert asked(web, "", basic("a", "b")) == [ALLOWED, ALLOWED]


def test_long_password(web):
    """A password longer than the 72 bytes that bcrypt looks at is checked as htpasswd does, instead of failing."""
    users(web, alice=hashed("x" * 72))

    assert asked(web, basic("alice", "x" * 100), basic("alice", "x" * 71)) == [ALLOWED, REFUSED]


def test_bcrypt_is_missing(web, monkeypatch):
    """Without the bcrypt library users refuse the start, with the command that installs it."""
    users(web, alice=hashed("a"))
    monkeypatch.setitem(sys.modules, "bcrypt", None)
    with pytest.raises(ConfigError) as fault:
        BasicAuth(WebFile(str(web)))

    assert str(fault.value) == (
        f"{web}: basic_auth_users needs the bcrypt library; install it with: pip install bcrypt"
    )
    write(web, "")
    BasicAuth(WebFile(str(web))).close()


# --- which paths ----------------------------------------------------------------------------------------------------


def test_every_route_but_one(web):
    """Of all routes that the application has, under every method, one answers without a login: the probe of health."""
    users(web, alice=hashed("a"))

    async def main():
        async with running(web) as (app, port):
            routes = {(route.method, route.resource.canonical) for route in app.router.routes()}
            return {route: await status(port, route[1], method=route[0]) for route in routes}

    answers = asyncio.run(main())
    assert {path for _, path in answers} >= {"/", "/metrics", "/-/ready", "/api/v1/state", "/api/v1/events", HEALTHY}
    assert {route for route, code in answers.items() if code == 200} == {("GET", HEALTHY), ("HEAD", HEALTHY)}
    assert {code for (_, path), code in answers.items() if path != HEALTHY} == {401}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/-/healthy/"),
        ("GET", "//-/healthy"),
        ("GET", "/-/healthy/../../metrics"),
        ("GET", "/-/../-/healthy/..%2fready"),
        ("GET", "/-/healthy%2f..%2f..%2fmetrics"),
        ("GET", "/metrics?/-/healthy"),
        ("GET", "/metrics#/-/healthy"),
        ("GET", "/metrics;/-/healthy"),
        ("GET", "http://x/metrics"),
        ("GET", "/-/HEALTHY"),
        ("POST", "/-/healthy"),
        ("OPTIONS", "/-/healthy"),
        ("OPTIONS", "*"),
        ("GET", "/nowhere"),
    ],
)
def test_no_path_that_looks_like_it(web, method, path):
    """What only looks like the probe, and what does not exist, asks for the password."""
    users(web, alice=hashed("a"))

    async def main():
        async with running(web) as (_, port):
            return await ask(port, path, method=method)

    code, headers = asyncio.run(main())
    assert code == 401
    assert headers["WWW-Authenticate"] == 'Basic realm="kvpressure", charset="UTF-8"'


def test_the_probe_asks_nothing_of_bcrypt(web, checked):
    """A probe with a wrong password is answered, and the password is not looked at."""
    users(web, alice=hashed("a"))

    async def main():
        async with running(web) as (_, port):
            return await status(port, HEALTHY, login=basic("alice", "wrong"))

    assert asyncio.run(main()) == 200
    assert checked == []


# --- what a check costs ---------------------------------------------------------------------------------------------


def test_as_many_checks_for_an_unknown_user(web, checked):
    """A wrong password and an unknown user cost one check each, every time; a login that was right costs one ever."""
    users(web, alice=hashed("sesame"))
    wrong, unknown, right = basic("alice", "wrong"), basic("nobody", "wrong"), basic("alice", "sesame")

    costs = []
    for header in (wrong, unknown, right):
        checked.clear()
        asked(web, header, header, header)
        costs.append(len(checked))
    assert costs == [3, 3, 1]


def test_an_unknown_user_has_the_cost_of_somebody(web, checked):
    """Where hashes differ in cost, each unknown name is checked against one of them, always the same."""
    costly = {"alice": hashed("a", 4), "bob": hashed("b", 5)}
    users(web, **costly)
    names = [f"stranger{n}" for n in range(64)]
    asked(web, *(basic(name, "x") for name in names + names))

    against = [value.decode() for _, value in checked]
    assert against[:64] == against[64:]
    assert set(against) == set(costly.values())


def test_a_check_does_not_block(web):
    """A check runs beside the event loop."""
    users(web, alice=hashed("sesame", 10))

    async def main():
        auth = BasicAuth(WebFile(str(web)))
        ticks = 0
        check = asyncio.create_task(auth.answer(basic("alice", "wrong"), "client"))
        while not check.done():
            await asyncio.sleep(0)
            ticks += 1
        auth.close()
        return ticks

    assert asyncio.run(main()) > 20


def test_memory_of_checks_is_bounded(web):
    """However many users log in, a bounded number of successes is remembered, and no password among them."""
    one = hashed("sesame")
    users(web, **{f"user{n}": one for n in range(MAX_REMEMBERED + 10)})

    async def main():
        auth = BasicAuth(WebFile(str(web)))
        for n in range(MAX_REMEMBERED + 10):
            assert await auth.answer(basic(f"user{n}", "sesame"), "client") is ALLOWED
        auth.close()
        return auth._remembered

    remembered = asyncio.run(main())

    assert len(remembered) == MAX_REMEMBERED
    assert all(len(key) == 32 for key in remembered)


# --- a flood of wrong passwords -------------------------------------------------------------------------------------


async def flood(auth, count, client):
    """Wrong logins, none like another, all at once; `client` gives where the n-th comes from."""
    tasks = [asyncio.create_task(auth.answer(basic("alice", f"wrong{n}"), client(n))) for n in range(count)]
    await asyncio.sleep(0)
    return tasks


def test_one_client_takes_few_places(web, held):
    """Of many wrong logins from one client a few wait and the others are sent away at once; another client gets in."""
    users(web, alice=hashed("sesame"))

    async def main():
        auth = BasicAuth(WebFile(str(web)))
        wrong = await flood(auth, 200, lambda _: "attacker")
        sent_away = [task.result() for task in wrong if task.done()]
        right = asyncio.create_task(auth.answer(basic("alice", "sesame"), "prometheus"))
        await asyncio.sleep(0)
        held.set()
        answers = [await task for task in wrong]
        let_in = await right
        auth.close()
        return sent_away, answers, let_in, (auth.refused, auth.busy), auth._clients

    sent_away, answers, let_in, counted, clients = asyncio.run(main())
    assert sent_away == [BUSY] * (200 - MAX_CHECKS_EACH)
    assert sorted(answers, key=str) == sorted(sent_away + [REFUSED] * MAX_CHECKS_EACH, key=str)
    assert let_in is ALLOWED
    assert counted == (MAX_CHECKS_EACH, 200 - MAX_CHECKS_EACH)
    assert not clients


def test_many_clients_take_all_places(web, held):
    """However many clients guess, a bounded number of logins waits; one that is remembered never waits."""
    users(web, alice=hashed("sesame"))

    async def main():
        auth = BasicAuth(WebFile(str(web)))
        held.set()
        assert await auth.answer(basic("alice", "sesame"), "prometheus") is ALLOWED
        held.clear()
        wrong = await flood(auth, 200, str)
        waiting = [task for task in wrong if not task.done()]
        remembered = await auth.answer(basic("alice", "sesame"), "prometheus")
        held.set()
        answers = [await task for task in waiting]
        after = await auth.answer(basic("alice", "other"), "prometheus")
        auth.close()
        return answers, remembered, after

    answers, remembered, after = asyncio.run(main())
    assert answers == [REFUSED] * MAX_CHECKS
    assert remembered is ALLOWED
    assert after is REFUSED


def test_the_same_login_waits_in_one_place(web, checked):
    """A browser sends its login with several requests at once: they are checked together, in one place."""
    users(web, alice=hashed("sesame", 6))

    async def main():
        auth = BasicAuth(WebFile(str(web)))
        answers = await asyncio.gather(*(auth.answer(basic("alice", "sesame"), "browser") for _ in range(50)))
        auth.close()
        return answers

    assert asyncio.run(main()) == [ALLOWED] * 50
    assert len(checked) == 1


def test_one_of_them_goes(web, held):
    """A request that is given up while its login is checked takes the check from nobody who sent the same."""
    users(web, alice=hashed("sesame"))

    async def main():
        auth = BasicAuth(WebFile(str(web)))
        first, second = (asyncio.create_task(auth.answer(basic("alice", "sesame"), "b")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        held.set()
        answer = await second
        auth.close()
        return first.cancelled(), answer

    assert asyncio.run(main()) == (True, ALLOWED)


def test_a_flood_over_the_wire(web, held):
    """The ones beyond get 503 with Retry-After at once, and the probe and a remembered login are answered meanwhile."""
    users(web, alice=hashed("sesame"))

    async def main():
        async with running(web) as (_, port):
            held.set()
            assert await status(port, "/metrics", login=basic("alice", "sesame")) == 200
            held.clear()
            wrong = [
                asyncio.create_task(ask(port, "/metrics", login=basic("alice", f"wrong{n}"), body=True))
                for n in range(40)
            ]
            for sent_away in itertools.islice(asyncio.as_completed(wrong), 40 - MAX_CHECKS_EACH):
                await sent_away
            meanwhile = await status(port, HEALTHY), await status(port, "/metrics", login=basic("alice", "sesame"))
            held.set()
            return [await task for task in wrong], meanwhile

    answers, meanwhile = asyncio.run(main())
    assert meanwhile == (200, 200)
    assert sorted(code for code, _ in answers) == [401] * MAX_CHECKS_EACH + [503] * (40 - MAX_CHECKS_EACH)
    busy = next(headers for code, headers in answers if code == 503)
    assert busy["Retry-After"] == "1"
    assert busy["body"] == "too many logins are being checked; try again\n"


# --- the users change -----------------------------------------------------------------------------------------------


def test_users_are_read_again(web):
    """Users that are added or removed take effect at the next request; a broken or missing file changes nothing."""

    async def main():
        users(web, alice=hashed("a"))
        auth = BasicAuth(WebFile(str(web)))
        answers = [await auth.answer(basic("alice", "a"), "")]
        users(web, bob=hashed("bb"), carol=hashed("c"))
        answers += [await auth.answer(basic("alice", "a"), ""), await auth.answer(basic("bob", "bb"), "")]
        write(web, "basic_auth_users: {bob: nonsense}")
        answers += [await auth.answer(basic("bob", "bb"), ""), await auth.answer("", "")]
        web.unlink()
        answers += [await auth.answer(basic("bob", "bb"), ""), await auth.answer("", "")]
        auth.close()
        return answers

    assert asyncio.run(main()) == [ALLOWED, REFUSED, ALLOWED, ALLOWED, REFUSED, ALLOWED, REFUSED]


def test_a_new_password(web):
    """Once a user's password is another one, the one that was remembered does not open the door any more."""

    async def main():
        users(web, alice=hashed("old"))
        auth = BasicAuth(WebFile(str(web)))
        answers = [await auth.answer(basic("alice", "old"), "")]
        users(web, alice=hashed("new"))
        answers += [await auth.answer(basic("alice", password), "") for password in ("old", "new")]
        auth.close()
        return answers

    assert asyncio.run(main()) == [ALLOWED, REFUSED, ALLOWED]


def test_a_renamed_user(web, checked):
    """A user renamed under the same hash is let in by the new name alone, though the old login was remembered."""

    async def main():
        same = hashed("sesame")
        users(web, alice=same)
        auth = BasicAuth(WebFile(str(web)))
        answers = [await auth.answer(basic("alice", "sesame"), "") for _ in range(2)]
        assert len(checked) == 1
        users(web, bob=same)
        answers += [await auth.answer(basic(user, "sesame"), "") for user in ("alice", "bob", "alice", "bob")]
        auth.close()
        return answers

    assert asyncio.run(main()) == [ALLOWED, ALLOWED, REFUSED, ALLOWED, REFUSED, ALLOWED]
    # A name that is gone costs as much as a wrong password, each time.
    assert len(checked) == 4


def test_auth_is_switched_on_and_off(web):
    """In a file that had no users, users lock the door without a restart, for a client that polls too; and back."""

    async def main():
        write(web, "# nothing yet\n")
        async with running(web) as (_, port):
            seen = [await status(port, "/metrics")]
            users(web, alice=hashed("a"))
            seen += [await status(port, "/metrics"), await status(port, "/metrics", login=basic("alice", "a"))]
            write(web, "# nothing any more\n")
            return [*seen, await status(port, "/metrics")]

    assert asyncio.run(main()) == [200, 401, 200, 200]


def test_bcrypt_is_missing_when_users_come(web, monkeypatch, logged):
    """Users that come to a running exporter without bcrypt change nothing, and the log says what to install."""

    async def main():
        write(web, "")
        monkeypatch.setitem(sys.modules, "bcrypt", None)
        async with running(web) as (_, port):
            users(web, alice=hashed_before)
            return [await status(port, "/metrics") for _ in range(2)]

    hashed_before = hashed("a")
    assert asyncio.run(main()) == [200, 200]
    assert logged.getvalue().count("install it with: pip install bcrypt") == 1


# --- what is told ---------------------------------------------------------------------------------------------------


def test_no_secret_reaches_the_log(web, logged):
    """A refused login is logged, rate-limited, without user name, password, hash or address; it is counted."""
    users(web, alice=hashed("sesame"))

    async def main():
        auth = BasicAuth(WebFile(str(web)))
        for _ in range(3):
            await auth.answer(basic("m4llory", "c4n4ry"), "192.0.2.7")
        await auth.answer("", "192.0.2.7")
        auth.close()
        return auth.refused, auth.busy

    assert asyncio.run(main()) == (4, 0)
    text = logged.getvalue()
    assert text.count("a request with a wrong user name or password was refused") == 1
    assert not [word for word in ("m4llory", "c4n4ry", "$2", "alice", "192.0.2.7") if word in text]


def test_closing_does_not_wait(web, held):
    """A server that stops does not wait for logins whose turn has not come."""
    users(web, alice=hashed("sesame"))

    async def main():
        auth = BasicAuth(WebFile(str(web)))
        wrong = await flood(auth, 20, str)
        before = time.monotonic()
        auth.close()
        took = time.monotonic() - before
        held.set()
        await asyncio.gather(*wrong, return_exceptions=True)
        return took, sum(task.cancelled() for task in wrong)

    took, given_up = asyncio.run(main())
    assert took < 1
    assert given_up == 19
