"""Tests of the gate's web site: responses, host names, origins."""

import pytest

from shoal.transport.browser.exchange import HttpRefusal, HttpRequest
from shoal.transport.browser.site import JOIN, PAGES, GateSite, refusal

HOST = "localhost:8080"
FRIEND = "https://friend.example"
SITE = GateSite(
    {name: name.encode() for name in PAGES.values()}, {HOST, "shoal.example.org"}, {FRIEND}
)


def request(method: str = "GET", target: str = "/", **headers: str) -> HttpRequest:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpRequest(method, target, {"host": HOST, **named}, b"")


def status(asked: HttpRequest) -> int:
    try:
        SITE.check(asked)
        found = SITE.answer(asked)
    except HttpRefusal as refused:
        return refused.status
    return 0 if found is None else found.status


@pytest.mark.parametrize("target", sorted(PAGES))
def test_pages_are_served_with_headers_that_let_nothing_else_in(target: str) -> None:
    found = SITE.answer(request(target=target + "?v=1"))
    assert found is not None and found.body == PAGES[target].encode()
    assert "default-src 'none'" in found.headers["Content-Security-Policy"]
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in found.headers


@pytest.mark.parametrize(
    "target", ["/nothing", "/../defaults.py", "//", "/web/shoal.js", "", "*", "http://localhost/"]
)
def test_there_is_nothing_else(target: str) -> None:
    assert status(request(target=target)) == 404


@pytest.mark.parametrize(
    "host", ["", "localhost", "localhost:1", "evil.example:8080", "localhost:8080.evil.example"]
)
def test_a_name_that_the_owner_did_not_mean_is_refused(host: str) -> None:
    """DNS rebinding: a stranger's name that leads here makes his page one of ours."""
    assert status(request(host=host)) == 421
    assert status(request(host="LOCALHOST:8080")) == 200
    assert status(request(host="shoal.example.org")) == 200


def join(**headers: str) -> HttpRequest:
    return request("POST", JOIN, content_type="application/json", **headers)


def test_allowed_origins() -> None:
    assert status(join()) == 0
    assert status(join(origin=f"http://{HOST}")) == 0
    assert status(join(origin=f"https://{HOST}")) == 0
    assert status(join(origin=FRIEND)) == 0
    for origin in ("https://evil.example", "null", "http://localhost", f"{FRIEND}.evil.example"):
        assert status(join(origin=origin)) == 403


def test_a_form_cannot_join() -> None:
    """A page of another site may send these content types without a preflight request."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert status(request("POST", JOIN, content_type=kind)) == 415
    assert status(request("POST", JOIN, content_type="application/json; charset=utf-8")) == 0


def test_methods() -> None:
    assert status(request("GET", JOIN)) == 405
    assert status(request("POST", "/")) == 405
    assert status(request("DELETE", "/shoal.js")) == 405


def test_only_a_listed_origin_is_told_that_it_may_read() -> None:
    ours = SITE.document(join(origin=f"http://{HOST}"), b"{}")
    assert "Access-Control-Allow-Origin" not in ours.headers
    friend = SITE.document(join(origin=FRIEND), b"{}")
    assert friend.headers["Access-Control-Allow-Origin"] == FRIEND
    before = SITE.answer(request("OPTIONS", JOIN, origin=FRIEND))
    assert before is not None and before.headers["Access-Control-Allow-Headers"] == "content-type"


def test_a_refusal_says_why() -> None:
    found = refusal(HttpRefusal(429, "too many"))
    assert (found.status, found.body) == (429, b"too many\n")
