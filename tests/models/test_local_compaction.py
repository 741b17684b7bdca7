"""A conversation that no longer fits into the embedded model's context."""

import pytest

from tertulia import Session
from tertulia.models.local import LocalModel
from tertulia.records.parts import Text
from tertulia.records.record import Message
from tertulia.testing import EventRecorder

WORDS = "We spoke of the weather in a town by the sea, of its harbour, of fish and of boats. "


@pytest.mark.req("S3-09")
@pytest.mark.timeout(120)
async def test_a_long_conversation_is_compacted_and_answered() -> None:
    history = [
        Message(seq=0, ts=0, role="assistant" if n % 2 else "user", parts=(Text(text=WORDS * 3),))
        for n in range(80)
    ]
    async with Session.open(model=LocalModel()) as session:
        await session.resume(history)
        async with EventRecorder(session.root) as seen:
            reply = await session.prompt("What is the capital of France?")
        assert reply.text
        assert len(seen.of("compaction")) == 1
        assert reply.usage.input_tokens < 3_840
        assert len(await session.transcript()) == 82
