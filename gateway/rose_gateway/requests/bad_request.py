"""A request that cannot be served as it is: 400, with the name of the field."""

from rose_gateway.errors import ApiError


class BadRequest(ApiError):
    """`param` is the path of the field as OpenAI writes it (`tools[0].function.name`), None where
    it is none alone."""

    def __init__(
        self, message: str, param: str | None = None, *, code: str = "invalid_value"
    ) -> None:
        super().__init__(400, message, param=param, code=code)
