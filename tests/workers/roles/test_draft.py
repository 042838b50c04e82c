"""Test that no mail crashes a drafter node."""

import pytest
from msgspec.structs import replace

from tests.app.speculation.test_jobs import job
from workers.roles.draft import _is_readable


@pytest.mark.parametrize(("tokens", "is_readable"), [((), True), ((0, 49), True), ((50,), False), ((3, 10**9), False)])
def test_a_job_with_a_token_outside_the_embedding_is_dropped(tokens: tuple[int, ...], is_readable: bool) -> None:
    """Such a token would crash a process on a GPU."""
    assert _is_readable(replace(job("r"), tokens=tokens), 50) is is_readable
