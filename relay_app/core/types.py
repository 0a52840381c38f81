"""The values that one relayed request is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from billing_app.core.usage import Usage
from channels_app.core.types import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A route of the relay: its path, the dialect of its clients, the upstream path.

    `dialect` is a name of DIALECTS. `path` is a Django route, whose parts (`<path:model>`)
    reach the dialect; `upstream_path` may hold them as `{model}`, the model being the one
    that the upstream is asked for.
    """

    name: str
    dialect: str
    path: str
    upstream_path: str
    method: str = "POST"
    # Costs nothing and needs no price.
    is_free: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a client asked for: parsed as far as routing needs, its bytes kept."""

    request_id: str
    endpoint: Endpoint
    model: str
    is_stream: bool
    body: bytes = field(repr=False)
    content_type: str = "application/json"
    query: str = ""
    # What the path named besides the model, e.g. the id of a response.
    path: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # Headers that may go upstream, already chosen from an allow-list.
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # All headers as they came, for `{client_header:NAME}`; names in lower case.
    client_headers: Sequence[tuple[bytes, bytes]] = field(default=(), repr=False)
    # What the channel's `header_override` sets, over whatever its provider type sends.
    header_override: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), repr=False
    )
    # The most tokens that the answer may have, as far as the request says; 0: it does not.
    max_output_tokens: int = 0
    # How many answers it asks for; 0: its field `n` says so, if anything does.
    answer_count: int = 0
    # The earlier response that it goes on from; empty: none.
    previous_response_id: str = ""
    # The relay asked for the event that tells the usage, not the client: it is not passed on.
    hides_usage: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFacts:
    """What a whole answer says of itself.

    `is_error`: only an error object. `is_empty`: a normal end that carries nothing.
    `is_readable`: False when the body is not what the dialect promises.
    """

    is_readable: bool = True
    is_error: bool = False
    is_empty: bool = False
    model: str = ""
    usage: Usage | None = None
    # The bytes that the model wrote, where no usage is told.
    output_bytes: int = field(default=0, compare=False)
    # Pictures that were made: most answers that hold some do not tell their number.
    images: int = 0
    # Of sound that was listened to; 0: not told.
    seconds: int = 0
    # Under which later requests may name it; empty where the dialect has no such thing.
    response_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFacts:
    """What one event of a stream says.

    `is_meaningful`: content, reasoning, a tool call or a refusal. `is_finish`: the
    answer has its proper end. `is_complete`: so has the stream, though some servers add a
    mark at once. `is_last`: nothing follows. `is_usage_only`: tells the usage and nothing
    else. `is_malformed`: not of the dialect, to be dropped. `choices`: the numbers of the choices
    that it is about, `ended` of those that end with it, in a dialect that counts them.
    """

    is_meaningful: bool = False
    is_finish: bool = False
    is_normal_finish: bool = True
    is_complete: bool = False
    is_last: bool = False
    is_error: bool = False
    is_malformed: bool = False
    is_usage_only: bool = False
    # The bytes in it that the model wrote: an answer without usage is counted by them.
    output_bytes: int = field(default=0, compare=False)
    # The pictures that it ends, and the seconds of sound that were listened to.
    images: int = 0
    seconds: int = 0
    choices: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()
    response_id: str = ""
    model: str = ""
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One attempt as it is logged: where, how it failed (None: answered), what next."""

    number: int
    channel_id: int
    channel_name: str
    key_id: int | None
    failure: Failure | None
    wait_s: float
    duration_s: float
    decision: str
    status: int | None = None
    upstream_request_id: str = ""
    upstream_model: str = ""
