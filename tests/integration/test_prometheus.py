"""``league metrics``: a real process answers Prometheus, and ends when told to."""

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

CONFIG = """
name = "nim"
game = { name = "nim", settings = { seats = 3, heaps = [2, 3] } }
agents.base_model = { kind = "base", rating = 1000.0, baseline = true }
agents.random_bot = { kind = "bot", rating = 800.0, baseline = true }
model.cloning = { sequences = 16 }
"""


def test_figures_of_a_league_are_served_until_the_process_is_told_to_stop(tmp_path: Path) -> None:
    (tmp_path / "league.toml").write_text(CONFIG)
    command, place = [sys.executable, "-m", "ui"], ["--run", str(tmp_path / "run")]
    opening = [*command, "up", "--no-workers", "--config", str(tmp_path / "league.toml"), *place]
    subprocess.run(opening, check=True, capture_output=True, timeout=600)
    serving = subprocess.Popen(
        [*command, "metrics", "--listen", "127.0.0.1:0", *place], stdout=subprocess.PIPE, text=True
    )
    try:
        assert serving.stdout is not None
        url = serving.stdout.readline().strip()
        with urllib.request.urlopen(url, timeout=300) as answer:
            text = answer.read().decode()
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert 'league_info{league="nim",game="nim"} 1\n' in text
        assert 'league_agent_rating{agent="base_model",kind="base"} 1000.0\n' in text
    finally:
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(timeout=600) == 0
        serving.stdout.close() if serving.stdout is not None else None


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ui", "metrics", "--listen", "9464", "--run", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 2
    assert "--listen 9464: expected HOST:PORT" in result.stderr
