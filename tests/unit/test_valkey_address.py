"""What the URL of a hot store says."""

from readstate.adapters.valkey.address import Address, member_name, server_name


def urls(url: str) -> list[str]:
    address = Address(url)
    return [address.url_of(seed) for seed in address.seeds]


def test_the_servers_of_a_cluster_share_what_is_around_them() -> None:
    assert urls("redis+cluster://a:1,b:2,[::1]:3") == ["redis://a:1", "redis://b:2", "redis://[::1]:3"]
    assert urls("rediss+cluster://me:p%40ss@a:1,b:2/0?x=1") == [
        "rediss://me:p%40ss@a:1/0?x=1",
        "rediss://me:p%40ss@b:2/0?x=1",
    ]


def test_one_server_is_itself() -> None:
    assert not Address("redis://me:secret@host:6379/3?x=1").is_cluster
    assert urls("redis://me:secret@host:6379/3?x=1") == ["redis://me:secret@host:6379/3?x=1"]


def test_a_server_that_does_not_know_its_name_is_where_it_was_asked() -> None:
    assert server_name("", 7001, "host:7000") == "host:7001"
    assert server_name("", 7001, "host") == "host:7001"
    assert server_name("10.0.0.5", 7001, "host:7000") == "10.0.0.5:7001"
    assert server_name("::1", 7001, "host:7000") == "[::1]:7001"
    assert server_name("", 7001, "[::1]:7000") == "[::1]:7001"


def test_servers_of_a_cluster_may_have_ipv6_addresses_only() -> None:
    assert urls("rediss+cluster://me:secret@[fd00::1]:1,[fd00::2]:2?x=1") == [
        "rediss://me:secret@[fd00::1]:1?x=1",
        "rediss://me:secret@[fd00::2]:2?x=1",
    ]


def test_a_member_of_a_cluster_is_named_as_a_url_takes_it() -> None:
    assert member_name("10.0.0.5:7001@17001", "host:7000") == "10.0.0.5:7001"
    assert member_name("10.0.0.5:7001@17001,node-1.example", "host:7000") == "10.0.0.5:7001"
    assert member_name("fd00::1:7001@17001", "host:7000") == "[fd00::1]:7001"
    assert member_name(":7001@17001", "[::1]:7000") == "[::1]:7001"
    assert member_name("?:7001@17001", "host:7000") == "host:7001"
