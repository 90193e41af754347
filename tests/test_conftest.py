"""`--no-skips`, with which CI fails if it cannot run what the project promises."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
CONFTEST = (Path(__file__).parent / "conftest.py").read_text()
SKIPS = {
    "in a test": "import pytest\ndef test_it(): pytest.skip('no kernel')",
    "by a mark": "import pytest\n@pytest.mark.skipif(1, reason='no kernel')\ndef test_it(): pass",
    "of a module": "import pytest\npytest.importorskip('no_kernel')\ndef test_it(): pass",
}


@pytest.mark.parametrize("code", SKIPS.values(), ids=SKIPS.keys())
def test_a_skip_fails_only_where_nothing_may_be_skipped(
    pytester: pytest.Pytester, code: str
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(code)
    assert pytester.runpytest_inprocess().parseoutcomes() == {"skipped": 1}
    result = pytester.runpytest_inprocess("--no-skips")
    assert result.ret != 0
    result.stdout.re_match_lines([".*did not run, and `--no-skips` was given:.*no.kernel.*"])


def test_an_expected_failure_is_no_skip(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("import pytest\n@pytest.mark.xfail\ndef test_it(): raise ValueError")
    assert pytester.runpytest_inprocess("--no-skips").parseoutcomes() == {"xfailed": 1}
