"""`output=Type`: the answer as a value of a type, checked, with one round to mend it."""

import re
from typing import Any

import msgspec

from ..records.errors import InvalidInput, OutputInvalid

_FENCED = re.compile(r"\A\s*```[a-zA-Z]*\n(.*)\n```\s*\Z", re.DOTALL)


class Output:
    """A type that an answer has to have. Pydantic models are known by their methods, so that nothing is imported."""

    def __init__(self, wanted: Any) -> None:
        self.type = wanted
        try:
            self.schema: dict[str, Any] = (
                wanted.model_json_schema() if _is_pydantic(wanted) else msgspec.json.schema(wanted)
            )
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"no JSON schema can be made of {wanted!r}: {error}", hint="give a type that JSON can carry"
            ) from error

    @property
    def instruction(self) -> str:
        schema = msgspec.json.encode(self.schema).decode()
        return f"Answer with one JSON value and nothing else. It has to match this JSON schema: {schema}"

    def parse(self, text: str) -> Any:
        """The value, or OutputInvalid that says what is wrong with the text."""
        found = _FENCED.match(text)
        data = found[1] if found else text
        try:
            if _is_pydantic(self.type):
                return self.type.model_validate_json(data)
            return msgspec.json.decode(data.encode("utf-8", "replace"), type=self.type)
        except (ValueError, msgspec.MsgspecError) as error:  # pydantic's ValidationError is a ValueError
            raise OutputInvalid(f"the answer is not what output asked for: {error}") from error


def _is_pydantic(wanted: Any) -> bool:
    return isinstance(wanted, type) and hasattr(wanted, "model_validate_json")


def mend(error: OutputInvalid) -> str:
    """What the model is told once."""
    return f"{error.message}\nAnswer again, with the JSON value only."
