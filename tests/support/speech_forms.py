"""Forms with an audio file, for /v1/audio/transcriptions and /v1/audio/translations."""

import io
import wave
from typing import Any


def speech(seconds: float = 1.5, level: int = 1) -> bytes:
    """A WAV file. Its samples have line ends, dashes and what else could be taken for a boundary."""
    file = io.BytesIO()
    with wave.open(file, "wb") as output:
        output.setnchannels(1)
        output.setsampwidth(2)
        output.setframerate(16_000)
        samples = b"\r\n--boundary\x00\xff\r\n\r\n" + bytes([level, 0])
        output.writeframes((samples * 40_000)[: int(seconds * 32_000)])
    return file.getvalue()


def form(file: bytes | None = None, /, **fields: str) -> dict[str, Any]:
    """The arguments of httpx for a form."""
    data = {"model": "whisper", **fields}
    return {"data": data, "files": {"file": ("speech.wav", speech(0.2) if file is None else file, "audio/wav")}}
