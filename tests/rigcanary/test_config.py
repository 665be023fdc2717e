"""Settings: sources in order, and everything that is not known is refused."""

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from contract.errors import ConfigError
from rigcanary.config import load, show


class Tls(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    ca_file: str | None = None
    port: int = 8883


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    site: str
    secret: SecretStr | None = None
    tls: Tls = Tls()
    nodes: list[str] = Field(default_factory=list)
    speed: float = 1.0


def read(
    tmp_path: Path, toml: str = "", env: dict[str, str] | None = None, **options: object
) -> Settings:
    config = None
    if toml:
        config = tmp_path / "agent.toml"
        config.write_text(toml)
    environment = {"PATH": "/bin", **(env or {})}
    return load(
        Settings, process="agent", config_file=config, overrides=options, environment=environment
    )


def test_options_go_before_environment_before_file(tmp_path: Path) -> None:
    toml = 'site = "file"\nspeed = 2.0\n[tls]\nport = 1\nca_file = "x"\n'
    env = {"RIGCANARY_AGENT_SPEED": "3", "RIGCANARY_AGENT_TLS__PORT": "2"}
    found = read(tmp_path, toml, env, site="option", speed=None)
    assert (found.site, found.speed, found.tls) == ("option", 3.0, Tls(ca_file="x", port=2))


def test_lists_come_as_json_from_the_environment(tmp_path: Path) -> None:
    env = {"RIGCANARY_AGENT_SITE": "lab", "RIGCANARY_AGENT_NODES": '["a", "b"]'}
    assert read(tmp_path, env=env).nodes == ["a", "b"]


def test_a_secret_is_read_from_a_file_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush\n")
    env = {"RIGCANARY_AGENT_SITE": "lab", "RIGCANARY_AGENT_SECRET_FILE": str(tmp_path / "secret")}
    found = read(tmp_path, env=env)
    assert found.secret is not None
    assert found.secret.get_secret_value() == "hush"
    assert "hush" not in show(found) + repr(found)


@pytest.mark.parametrize(
    ("toml", "env", "says"),
    [
        ("", {}, "site is needed (option --site or variable RIGCANARY_AGENT_SITE)"),
        ('sight = "x"', {"RIGCANARY_AGENT_SITE": "a"}, "sight: no such setting"),
        ('site = "x"\n[tls]\nprot = 1', {}, "tls.prot: no such setting"),
        ("site = ", {}, "not TOML"),
        ("", {"RIGCANARY_AGENT_SIGHT": "x"}, "RIGCANARY_AGENT_SIGHT is not a setting"),
        ("", {"RIGCANARY_AGENT_TLS__PROT": "x"}, "RIGCANARY_AGENT_TLS__PROT is not a setting"),
        ("", {"RIGCANARY_AGENT_SITE": "a", "RIGCANARY_AGENT_TLS__PORT": "x"}, "tls.port"),
        ("", {"RIGCANARY_AGENT_SITE": "a", "RIGCANARY_AGENT_NODES": "x"}, "nodes"),
        ("", {"RIGCANARY_AGENT_SECRET_FILE": "/nowhere"}, "cannot read it"),
    ],
)
def test_what_is_wrong_is_said_by_name(
    tmp_path: Path, toml: str, env: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, toml, env)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read it"):
        load(Settings, process="agent", config_file=tmp_path / "none.toml", environment={"A": "b"})


def test_another_process_variables_are_left_alone(tmp_path: Path) -> None:
    env = {"RIGCANARY_AGENT_SITE": "lab", "RIGCANARY_BRIDGE_WHATEVER": "x"}
    assert read(tmp_path, env=env).site == "lab"
