"""A run's folder remembers the broker that its league is on, with the credentials."""

from pathlib import Path

from league.log.access import BrokerCredentials
from league.run import Run


def test_a_folder_alone_names_broker_league_and_credentials(tmp_path: Path, monkeypatch) -> None:
    for name in ("LEAGUE_CREDS", "LEAGUE_CA"):
        monkeypatch.delenv(name, raising=False)
    creds = tmp_path / "operator.creds"
    Run(tmp_path, nats="nats://127.0.0.1:1", access=BrokerCredentials(creds)).record_broker("games")
    run = Run(tmp_path)
    assert (run.nats, run.name, run.access.creds) == ("nats://127.0.0.1:1", "games", creds)
    assert Run(tmp_path, nats="nats://127.0.0.1:1").access.creds == creds
    other = Run(tmp_path, nats="nats://127.0.0.1:2")
    assert (other.name, other.access.creds) == (None, None), "no other broker is shown these credentials"
    monkeypatch.setenv("LEAGUE_CREDS", "reader.creds")
    assert Run(tmp_path).access.creds == Path("reader.creds")


def test_a_run_with_a_store_of_its_own_keeps_to_it(tmp_path: Path) -> None:
    Run(tmp_path, nats="nats://127.0.0.1:1", access=BrokerCredentials()).record_broker("games")
    (tmp_path / "nats" / "store").mkdir(parents=True)
    assert Run(tmp_path).nats is None
