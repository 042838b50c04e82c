"""A drafter node takes nothing from its mail that would bring its process down."""

import pytest

from tests.app.verifier.test_dispatch import job
from workers.roles.draft import _is_readable


@pytest.mark.parametrize(("tokens", "is_readable"), [((), True), ((0, 49), True), ((50,), False), ((3, 10**9), False)])
def test_a_job_with_a_token_that_has_no_row_in_the_embedding_is_not_read(
    tokens: tuple[int, ...], is_readable: bool
) -> None:
    """A GPU's process would not outlive it."""
    assert _is_readable(job("r").model_copy(update={"tokens": tokens}), 50) is is_readable
