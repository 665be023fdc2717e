"""Ports, TOML files, settings, facts, report, view: everything that needs no process."""

import io
import json
import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rich.console import Console

from contract.errors import ConfigError
from onebox import folders, ports, report, toml, view
from onebox.facts import Facts, unix_seconds
from onebox.parts import choose_ports
from onebox.report_html import write_html
from onebox.settings import DemoSettings, ServeSettings
from simulator.story import demo_story

# -- ports ----------------------------------------------------------------------------------------


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


def test_free_ports_differ() -> None:
    chosen = choose_ports(mqtt=0, kafka=0, runner=0, web=0, mqtt_v5=0)
    assert len(chosen.taken()) == 5
    assert all(ports.is_free(port) for port in chosen.taken())


def test_a_taken_port_is_named_with_its_option(taken: int) -> None:
    assert not ports.is_free(taken)
    with pytest.raises(ConfigError, match=rf"^--kafka-port {taken} is taken") as error:
        choose_ports(mqtt=0, kafka=taken, runner=0, web=0)
    assert "\n" not in str(error.value)


def test_a_port_given_twice_is_refused() -> None:
    port = ports.free_port(set())
    with pytest.raises(ConfigError, match=r"--web-port .* is given twice"):
        choose_ports(mqtt=port, kafka=0, runner=0, web=port)


# -- settings files -------------------------------------------------------------------------------

plain = (
    st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"]))
)
tables = st.dictionaries(st.text('abcdef-_ .é"', min_size=1), plain | st.lists(plain), max_size=4)


@given(
    st.dictionaries(
        st.text("ghij", min_size=1, max_size=3),
        plain | st.lists(plain) | tables | st.lists(tables, min_size=1, max_size=3),
        max_size=5,
    )
)
def test_toml_comes_back_as_it_was(values: dict) -> None:
    assert tomllib.loads(toml.dumps(values)) == values


def test_settings_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.toml"
    toml.write(path, {"a": 1})
    path.chmod(0o644)
    toml.write(path, {"a": 2})
    assert path.stat().st_mode & 0o777 == 0o600
    assert tomllib.loads(path.read_text()) == {"a": 2}


def test_webhook_needs_its_secret_and_does_not_show_it() -> None:
    with pytest.raises(ValidationError, match="webhook and webhook_secret go together"):
        ServeSettings(webhook="http://127.0.0.1:9/hook")
    whole = ServeSettings(webhook="http://127.0.0.1:9/hook", webhook_secret="whsec_c2VjcmV0")
    assert "c2VjcmV0" not in repr(whole) + whole.model_dump_json()


@pytest.mark.parametrize("wrong", [{"speed": 0}, {"rigs": 1}, {"cards": 17}, {"seed": -1}])
def test_demo_refuses(wrong: dict) -> None:
    with pytest.raises(ValidationError):
        DemoSettings(**wrong)


# -- folders --------------------------------------------------------------------------------------


def test_state_folder_must_be_empty(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with (
        pytest.raises(ConfigError, match="is not empty"),
        folders.state_folder(tmp_path, print),
    ):
        pass


def test_temporary_state_goes_unless_it_is_kept() -> None:
    with folders.state_folder(None, print) as gone:
        (gone / "file").touch()
    assert not gone.exists()
    lines: list[str] = []
    with (
        pytest.raises(ConfigError, match="boom"),
        folders.state_folder(None, lines.append) as kept,
        folders.log_file(kept),
    ):
        raise ConfigError("boom")
    assert lines == [f"logs kept in {kept / 'log'}"]
    folders.remove(kept)
    assert not kept.exists()


def test_report_folder_is_tried_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--report .*file/deeper"):
        folders.check_report_folder(tmp_path / "file" / "deeper")
    folders.check_report_folder(tmp_path / "new")
    assert (tmp_path / "new").is_dir()


# -- facts and report -----------------------------------------------------------------------------


def test_records_that_come_twice_change_nothing(played) -> None:
    facts = played.facts
    before = (len(facts.decisions), {d: len(c.risks) for d, c in facts.cards.items()})
    again = next(iter(facts.decisions.values()))
    facts.on_risks(
        {
            "minute": 1_767_225_600,
            "model_version": "test-1",
            "threshold": 0.5,
            "devices": [{"device": "GPU-unknown", "risk_60m": 0.5}],
        }
    )
    assert (len(facts.decisions), {d: len(c.risks) for d, c in facts.cards.items()}) == before
    assert facts.asked_to_leave() == {again.device}


def test_a_release_ends_the_request(played) -> None:
    facts = played.facts
    request = facts.requests()[0]
    facts.on_decision(
        {
            "decision_id": "dec-release",
            "type": "device.released",
            "dry_run": False,
            "data": {
                "node": request.node,
                "device": request.device,
                "decided_at": "2026-01-01T03:00:00Z",
            },
        }
    )
    assert facts.asked_to_leave() == frozenset()
    assert facts.request_for(request.device) == request


def test_report_has_the_shape_of_the_contract(played) -> None:
    numbers = report.build(played.story, played.facts, played.run)
    assert json.loads(json.dumps(numbers)) == numbers
    assert list(numbers) == [
        "rigs",
        "cards",
        "simulated_seconds",
        "wall_seconds",
        "first_migration_wall_seconds",
        "failures",
        "migrations",
        "false_migrations",
        "job",
    ]
    assert numbers["rigs"] == 4
    assert numbers["cards"] == 8
    assert numbers["simulated_seconds"] == 180 * 60
    assert numbers["wall_seconds"] == 210
    assert numbers["first_migration_wall_seconds"] == 114.5
    first, second = numbers["failures"]
    assert set(first) == {"device", "kind", "failed_at", "decided_at", "cause"}
    assert unix_seconds(first["failed_at"]) - unix_seconds(first["decided_at"]) == 40 * 60
    assert (second["decided_at"], second["cause"]) == (None, None)
    (migration,) = numbers["migrations"]
    assert set(migration) == {
        "device",
        "episode_id",
        "requested_at",
        "completed_at",
        "job",
        "from",
        "to",
    }
    assert migration["to"] == {"node": "rig002", "device": "GPU-new"}
    # On the story's clock, like the failure: asked for after the decision, done before the end.
    asked, done = (unix_seconds(migration[k]) for k in ("requested_at", "completed_at"))
    assert unix_seconds(first["decided_at"]) <= asked < done < unix_seconds(first["failed_at"])
    assert done - asked == 4.5 * played.run.speed
    assert numbers["false_migrations"] == 0
    job = numbers["job"]
    assert job["loss_first"] > job["loss_before_move"] > job["loss_after_move"] > job["loss_last"]
    assert report.failings(played.story, played.facts, played.run) == []
    assert "decided 40 min before" in "\n".join(report.summary(numbers, []))


def test_moves_of_healthy_cards_are_counted(played) -> None:
    (good,) = played.facts.migrations
    healthy = next(
        d for d in played.story.devices if d.device not in {f.device for f in played.story.failures}
    )
    played.facts.migrations = [good, good | {"device": healthy.device, "job": None}]
    numbers = report.build(played.story, played.facts, played.run)
    assert numbers["false_migrations"] == 1
    assert len(numbers["migrations"]) == 2


def test_why_a_story_did_not_hold(played) -> None:
    def failings() -> str:
        return "; ".join(report.failings(played.story, played.facts, played.run))

    good = played.facts.migrations
    played.facts.migrations = [good[0] | {"state": "failed", "error": "no free card"}]
    assert "ended as failed (no free card)" in failings()
    played.facts.migrations = []
    assert "was not requested by simulated minute 180" in failings()
    played.facts.migrations = good
    played.facts.job = played.facts.job | {"state": "failed", "error": "exit code 1"}
    assert "the job is failed: exit code 1" in failings()
    played.facts.job = None
    assert "there is no training job" in failings()


def test_a_report_of_a_run_that_had_just_begun(tmp_path: Path, played) -> None:
    story = demo_story()
    facts = Facts.of((d.device, d.node, d.index) for d in story.devices)
    numbers = report.build(story, facts, played.run)
    assert numbers["job"] is None
    assert numbers["first_migration_wall_seconds"] is None
    wrong = report.failings(story, facts, played.run)
    assert report.summary(numbers, wrong)
    write_html(tmp_path / "r.html", story, facts, played.run, numbers, wrong)


def test_html_stands_alone(tmp_path: Path, played) -> None:
    path = tmp_path / "report.html"
    numbers = report.build(played.story, played.facts, played.run)
    write_html(path, played.story, played.facts, played.run, numbers, ["<b> & co"])
    text = path.read_text()
    assert text.count("<svg") == 3  # two failed cards, one job
    assert "&lt;b&gt; &amp; co" in text
    for reference in ("src=", "<link", "<script", "@import", "url(http"):
        assert reference not in text


# -- view -----------------------------------------------------------------------------------------


def drawn(facts: Facts, stage: view.Stage, width: int, height: int) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    console.print(view.screen(facts, stage, width, height, now=12.0))
    return out.getvalue()


def stage_of(played, **options) -> view.Stage:
    return view.Stage(
        title="demo",
        nodes=played.story.nodes,
        cards_per_node=2,
        speed=60.0,
        duration_seconds=14_400,
        sim_start=played.run.sim_start,
        **options,
    )


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60), (40, 12)])
def test_view_fits_and_shows_what_matters(played, size: tuple[int, int]) -> None:
    text = drawn(played.facts, stage_of(played, sim_seconds=10_800.0), *size)
    lines = text.splitlines()
    assert len(lines) <= size[1]
    assert max(len(line) for line in lines) <= size[0]
    if size[0] >= 80:
        for part in ("rig001", "✗", "3:00 of 4:00", "leave rig001", "step 900", "✓ rig001"):
            assert part in text


def test_view_of_the_start(played) -> None:
    stage = stage_of(played)
    step = stage.step("worker")
    step.state, step.detail, step.began = "starting", "the model is being loaded", 4.0
    text = drawn(played.facts, stage, 100, 24)
    assert "worker" in text
    assert "8.0 s" in text
    assert "the model is being loaded" in text


def test_a_fleet_larger_than_the_screen_shows_its_sick_rigs(played) -> None:
    story = demo_story(rigs=40, cards=2)
    facts = Facts.of((d.device, d.node, d.index) for d in story.devices)
    facts.cards[story.failures[1].device].states[0] = "lost"
    stage = view.Stage(title="demo", nodes=story.nodes, cards_per_node=2, sim_seconds=1.0)
    text = drawn(facts, stage, 100, 24)
    assert story.failures[1].node in text
    assert "more rigs" in text


@given(st.lists(st.floats(-1e6, 1e6), max_size=80), st.integers(0, 40))
def test_sparkline_has_a_bar_for_each_share(values: list[float], width: int) -> None:
    assert len(view.sparkline(values, width)) == min(len(values), width)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–:––"), (-5, "0:00"), (59, "0:00"), (3661, "1:01")]
)
def test_clock(seconds: float | None, text: str) -> None:
    assert view.clock(seconds) == text
