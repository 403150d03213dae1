from collections.abc import Iterator

import pytest

from tests.roseinfer.native.builds import using

BUILDS = ("amx", "avx512_bf16", "avx512_vnni", "avx512", "avx_vnni", "avx2", "portable")


@pytest.fixture(params=BUILDS)
def any_build(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Each build of the library in turn."""
    with using(request.param, tmp_path_factory.getbasetemp()):
        yield
