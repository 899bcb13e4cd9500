"""Which server is asked: the same one for what begins alike, another one when it is crowded, down or busy."""

from collections import Counter

from inference.remote import ServerState
from inference.remote.load_balancer import OVERLOAD_RATIO, ServerTable, affinity_key

URLS = [f"http://host-{number}:8000" for number in range(5)]
KEYS = [affinity_key(None, [number, 7, 7], 256) for number in range(400)]


def routes_of(urls: list[str]) -> ServerTable:
    routes = ServerTable()
    routes.update(urls)
    return routes


def picked(routes: ServerTable, key: bytes, now: float = 0.0, avoid: tuple[ServerState, ...] = ()) -> str:
    server = routes.pick(key, now, avoid)
    assert server is not None
    return server.url


def test_a_key_has_one_server_whatever_the_order_of_the_urls() -> None:
    forward, backward = routes_of(URLS), routes_of(URLS[::-1])
    assert [picked(forward, key) for key in KEYS] == [picked(backward, key) for key in KEYS]


def test_keys_are_spread_evenly() -> None:
    routes = routes_of(URLS)
    counts = Counter(picked(routes, key) for key in KEYS)
    assert all(50 <= counts[url] <= 110 for url in URLS)


def test_a_server_that_leaves_moves_its_own_keys_only_and_one_that_joins_takes_a_share() -> None:
    all_five, four = routes_of(URLS), routes_of(URLS[:4])
    moved = [key for key in KEYS if picked(all_five, key) != picked(four, key)]
    assert moved == [key for key in KEYS if picked(all_five, key) == URLS[4]]
    assert 50 <= len(moved) <= 110


def test_the_beginning_of_the_prompt_and_the_adapter_make_the_key() -> None:
    assert affinity_key("a", [1, 2, 3, 4], 3) == affinity_key("a", [1, 2, 3, 5], 3)
    assert affinity_key("a", [1, 2, 3], 3) != affinity_key("b", [1, 2, 3], 3)
    assert affinity_key("a", [1, 2, 3], 3) != affinity_key("a", [1, 2, 4], 3)
    assert affinity_key(None, [1, 2], 3) != affinity_key("a", [1, 2], 3)


def test_a_crowd_of_one_key_is_bounded_on_its_server_and_overflows_to_others() -> None:
    routes, counts = routes_of(URLS), Counter[str]()
    for _ in range(200):
        server = routes.pick(KEYS[0], now=0.0)
        assert server is not None
        server.running += 1
        counts[server.url] += 1
        assert server.running <= OVERLOAD_RATIO * sum(counts.values()) / len(URLS) + 1
    assert len(counts) == 4, "a quarter more than a fifth each"


def test_servers_that_are_down_or_busy_are_not_asked_until_they_are_well() -> None:
    routes = routes_of(URLS)
    first = routes.pick(KEYS[0], now=0.0)
    assert first is not None
    first.down = True
    assert picked(routes, KEYS[0]) != first.url
    first.down, first.busy_until = False, 5.0
    assert picked(routes, KEYS[0], now=4.9) != first.url
    assert picked(routes, KEYS[0], now=5.0) == first.url


def test_a_server_that_failed_a_request_is_asked_again_only_when_there_is_no_other() -> None:
    routes = routes_of(URLS[:2])
    first = routes.pick(KEYS[0], now=0.0)
    assert first is not None
    assert picked(routes, KEYS[0], avoid=(first,)) != first.url
    assert picked(routes_of(URLS[:1]), KEYS[0], avoid=(ServerState(URLS[0]),)) == URLS[0]


def test_with_all_down_there_is_none() -> None:
    routes = routes_of(URLS[:2])
    for server in routes.servers.values():
        server.down = True
    assert routes.pick(KEYS[0], now=0.0) is None
    assert routes_of([]).pick(KEYS[0], now=0.0) is None


def test_what_is_known_of_a_server_stays_while_others_come_and_go() -> None:
    routes = routes_of(URLS[:2])
    kept = routes.servers[URLS[0]]
    routes.update([f"{URLS[0]}/", URLS[2]])
    assert list(routes.servers) == [URLS[0], URLS[2]]
    assert routes.servers[URLS[0]] is kept
