"""The bounds on requests: none, however large or long, may take the machine."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The defaults suit one person's laptop; all are upper bounds."""

    body: int = 8_000_000  # bytes of a request: an image, as text
    bodies: int = 64_000_000  # bytes of all requests at work
    body_values: int = 50_000  # in the JSON of a request
    body_depth: int = 32
    body_seconds: float = 20.0  # until a body is whole
    text: int = 8_000  # characters
    tokens: int = 256  # read or written, of one trace
    beams: int = 16
    edits: int = 64
    numbers: int = 8_000_000  # of one value sent as bytes
    numbers_as_text: int = 200_000
    trace_bytes: int = 400_000_000  # of one trace
    all_trace_bytes: int = 800_000_000
    traces: int = 64
    working: int = 2  # requests computed at a time
    waiting: int = 32  # requests that wait for that; more are told to come again
    seconds: float = 30.0  # from asking to the answer
    responses: int = 200_000_000  # bytes of all answers that wait to be read
    connections: int = 400  # open at a time; one that is not at work makes room for the next
    head_seconds: float = 10.0  # until the head of a request is whole
    idle_seconds: float = 30.0  # between two requests of a connection
    linger_seconds: float = 5.0  # in which what a refused client still sends is read and dropped
    send_buffer: int = 262_144  # bytes of a connection that the system holds, besides ours
    exchange_seconds: float = 120.0  # from the head of a request until its answer is read
