"""Test the server's limit of open files."""

import resource

from web.server import allow_files


def test_the_open_file_limit_rises_and_never_falls() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        allow_files(512)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (512, before[1])
        allow_files(300)  # never fewer
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 512
        allow_files(2**40)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] in (before[1], 2**40)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
