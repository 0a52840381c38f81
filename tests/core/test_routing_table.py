"""The routing table: names to channels by tier, and patching without changing the past."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core import routing
from channels_app.core.routing import RoutingTable, TableBuilder, model_matches
from channels_app.core.types import ChannelView, GroupView
from channels_app.options import Options


def channel(id, *models, groups=("default",), priority=0, is_enabled=True, provider="openai"):
    return ChannelView(
        id=id,
        name=f"c{id}",
        provider=provider,
        base_url="",
        models=models,
        groups=tuple(groups),
        priority=priority,
        is_enabled=is_enabled,
    )


def table(*channels):
    builder = TableBuilder()
    for each in channels:
        builder.put(each)
    return builder.table()


def tiers(where, group, model):
    """Return the ids of the route, tier by tier; None if there is none."""
    route = where.route(group, model)
    return route and [[channel.id for channel in tier] for tier in route.tiers]


def test_tiers_are_priorities_from_the_highest_and_ids_in_order():
    where = table(
        channel(5, "m", priority=100),
        channel(3, "m", priority=50),
        channel(2, "m", priority=100),
        channel(1, "m", priority=-1),
    )

    assert tiers(where, "default", "m") == [[2, 5], [3], [1]]


def test_an_exact_name_comes_before_wildcards():
    """A channel that only has the wildcard is no part of the exact name's route."""
    where = table(channel(1, "gpt-*"), channel(2, "gpt-5"), channel(3, "*"))

    assert tiers(where, "default", "gpt-5") == [[2]]


def test_wildcards_that_match_are_united():
    where = table(channel(1, "gpt-*"), channel(2, "gpt-4*", "gpt-*"), channel(3, "claude-*"))

    assert tiers(where, "default", "gpt-4o") == [[1, 2]]
    assert tiers(where, "default", "gpt-5") == [[1, 2]]
    assert tiers(where, "default", "claude-x") == [[3]]
    assert tiers(where, "default", "mistral") is None


def test_a_lone_star_serves_every_model():
    assert tiers(table(channel(1, "*")), "default", "anything") == [[1]]


def test_groups_are_kept_apart():
    where = table(channel(1, "m", groups=("a",)), channel(2, "m", "n*", groups=("a", "b")))

    assert tiers(where, "a", "m") == [[1, 2]]
    assert tiers(where, "b", "m") == [[2]]
    assert tiers(where, "b", "nn") == [[2]]
    assert tiers(where, "c", "m") is None


def test_a_disabled_channel_is_known_but_not_routed():
    where = table(channel(1, "m", "w-*", is_enabled=False))

    assert tiers(where, "default", "m") is None
    assert where.knows("m")
    assert where.knows("w-1")
    assert where.models("default") == []


def test_a_model_of_any_group_is_known():
    where = table(channel(1, "m", groups=("other",)))

    assert where.knows("m")
    assert not where.knows("M")
    assert not where.knows("mm")
    assert not RoutingTable().knows("m")


def test_models_are_sorted_without_wildcards_and_without_doubles():
    where = table(channel(1, "b", "a", "x*"), channel(2, "a"), channel(3, "z", groups=("other",)))

    assert where.models("default") == ["a", "b"]
    assert where.models("nobody") == []


def test_names_and_groups_listed_twice_count_once():
    where = table(channel(1, "m", "m", "w*", "w*", groups=("default", "default")))

    assert tiers(where, "default", "m") == [[1]]
    assert tiers(where, "default", "w") == [[1]]


def test_a_channel_listed_twice_is_taken_out_whole():
    builder = TableBuilder(table(channel(1, "m", "m", "w*", "w*", groups=("a", "a"))))

    builder.remove(1)

    where = builder.table()
    assert tiers(where, "a", "m") is None
    assert tiers(where, "a", "w") is None
    assert where.models("a") == []


def test_removing_what_is_not_there_changes_nothing():
    builder = TableBuilder(table(channel(1, "m")))

    builder.remove(2)

    assert tiers(builder.table(), "default", "m") == [[1]]


def test_set_groups_names_the_channels_of_renamed_and_removed_groups():
    builder = TableBuilder(
        table(
            channel(1, "m", groups=("a",)),
            channel(2, "m", groups=("b",)),
            channel(3, "m", groups=("c", "a")),
            channel(4, "m", groups=()),
        )
    )
    a, b, c = (GroupView(id=i, name=n) for i, n in enumerate("abc", start=1))
    builder.set_groups([a, b, c])

    assert builder.set_groups([a, b, c]) == set()
    assert builder.set_groups([a, GroupView(id=2, name="new"), c]) == {2}
    assert builder.set_groups([GroupView(id=2, name="new"), c]) == {1, 3}


def test_set_groups_sees_names_that_were_exchanged():
    builder = TableBuilder(table(channel(1, "m", groups=("a",)), channel(2, "m", groups=("b",))))
    builder.set_groups([GroupView(id=1, name="a"), GroupView(id=2, name="b")])

    stale = builder.set_groups([GroupView(id=1, name="b"), GroupView(id=2, name="a")])

    assert stale == {1, 2}


def test_routes_are_worked_out_once():
    where = table(channel(1, "m"))

    assert where.route("default", "m") is where.route("default", "m")


def test_asking_for_endless_names_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(routing, "MAX_CACHED_ROUTES", 10)
    where = table(channel(1, "*"))

    routes = [tiers(where, "default", f"m{n}") for n in range(100)]

    assert routes == [[[1]]] * 100
    assert len(where._routes) <= 10


@pytest.mark.parametrize(
    ("pattern", "model", "expected"),
    [
        ("gpt-5", "gpt-5", True),
        ("gpt-5", "gpt-5-mini", False),
        ("gpt-*", "gpt-", True),
        ("gpt-*", "gpt", False),
        ("*", "", True),
        ("g*t", "gpt", False),
        ("g*t", "g*t", True),
    ],
)
def test_only_a_trailing_star_is_a_wildcard(pattern, model, expected):
    assert model_matches(pattern, model) is expected


NAMES = ["m", "mm", "n", "m*", "*", "n-*"]
GROUPS = ["a", "b", "c"]
ASKED = ["m", "mm", "mmm", "n", "n-1", "other", "m*"]

channels = st.builds(
    channel,
    st.integers(1, 6),
    *[st.sampled_from(NAMES)] * 2,
    groups=st.lists(st.sampled_from(GROUPS), max_size=3),
    priority=st.integers(-1, 2),
    is_enabled=st.booleans(),
)
groups = st.lists(st.sampled_from(GROUPS), unique=True).map(
    lambda names: [GroupView(id=GROUPS.index(name), name=name) for name in names]
)
options = st.builds(Options, retry_times=st.integers(0, 20))
changes = st.one_of(
    st.tuples(st.just("put"), channels),
    st.tuples(st.just("remove"), st.integers(1, 6)),
    st.tuples(st.just("set_groups"), groups),
    st.tuples(st.just("set_options"), options),
)


def seen(where):
    """Return all that a request can ask of a table."""
    return (
        {(g, m): tiers(where, g, m) for g in GROUPS for m in ASKED},
        {g: where.models(g) for g in GROUPS},
        {m: where.knows(m) for m in ASKED},
        dict(where.channels),
        dict(where.groups),
        where.options,
    )


def from_scratch(channels, groups, options):
    builder = TableBuilder()
    builder.set_groups(groups)
    builder.set_options(options)
    for each in channels.values():
        builder.put(each)
    return builder.table()


@given(rounds=st.lists(st.lists(changes, max_size=4), max_size=6))
def test_a_patched_table_equals_one_from_scratch_and_old_ones_never_change(rounds):
    """Each round patches the table before it; asking the old ones again, their kept
    routes included, gives what they said at first."""
    where, kept = RoutingTable(), []
    now_channels, now_groups, now_options = {}, [], Options()

    for round_ in rounds:
        kept.append((where, seen(where)))
        builder = TableBuilder(where)
        for change, argument in round_:
            getattr(builder, change)(argument)
            if change == "put":
                now_channels[argument.id] = argument
            elif change == "remove":
                now_channels.pop(argument, None)
            elif change == "set_groups":
                now_groups = argument
            else:
                now_options = argument
        where = builder.table()

        assert seen(where) == seen(from_scratch(now_channels, now_groups, now_options))
    for old, said in kept:
        assert seen(old) == said
        old._routes.clear()  # work them out once more: what they come from is the same too
        assert seen(old) == said


@given(channels=st.lists(channels, max_size=6))
def test_a_route_holds_exactly_the_enabled_channels_that_match(channels):
    """Against the plain reading of spec 01 section 3: exact names first, then wildcards."""
    where = table(*channels)
    live = [each for each in {each.id: each for each in channels}.values() if each.is_enabled]

    for group in GROUPS:
        for model in ASKED:
            exact = {each.id for each in live if group in each.groups and model in each.models}
            wild = {
                each.id
                for each in live
                if group in each.groups
                and any(n.endswith("*") and model.startswith(n[:-1]) for n in each.models)
            }
            if model.endswith("*"):  # a star in a request is no name of a channel
                exact = set()
            found = tiers(where, group, model)
            assert {i for tier in found or [] for i in tier} == (exact or wild)


NOT_OPENAI, NOT_ANTHROPIC = frozenset({"openai"}), frozenset({"anthropic"})


def ids(route):
    return route and [[channel.id for channel in tier] for tier in route.tiers]


def test_channels_of_types_that_are_left_out_are_no_part_of_the_route():
    where = table(
        channel(1, "m", priority=9),
        channel(2, "m", provider="anthropic"),
        channel(3, "m", provider="other"),
    )

    assert ids(where.route("default", "m")) == [[1], [2, 3]]
    assert ids(where.route("default", "m", without=NOT_OPENAI)) == [[2, 3]]
    assert ids(where.route("default", "m", without=NOT_ANTHROPIC)) == [[1], [3]]
    assert where.route("default", "m", without=NOT_OPENAI | {"anthropic", "other"}) is None


def test_a_wildcard_serves_where_the_exact_name_is_left_out():
    where = table(channel(1, "m"), channel(2, "*", provider="anthropic"))

    assert ids(where.route("default", "m", without=NOT_OPENAI)) == [[2]]
    assert ids(where.route("default", "m", without=NOT_ANTHROPIC)) == [[1]]


def test_routes_are_kept_apart_by_what_is_left_out():
    where = table(channel(1, "m"), channel(2, "m", provider="anthropic"))

    first = where.route("default", "m", without=NOT_OPENAI)

    assert where.route("default", "m", without=frozenset(["openai"])) is first
    assert where.route("default", "m", without=NOT_ANTHROPIC) is not first
    assert where.route("default", "m") is not first
