"""``rigcanary doctor``, ``doctor nccl`` and ``doctor topology``."""

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

app = typer.Typer(add_completion=False)

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    mqtt: Annotated[str | None, typer.Option(help="Broker to try, HOST or HOST:PORT.")] = None,
    mqtt_user: Annotated[str | None, typer.Option(help="User name at the broker.")] = None,
    mqtt_password_file: Annotated[
        Path | None, typer.Option(help="File that holds the password.")
    ] = None,
    mqtt_ca_file: Annotated[
        Path | None, typer.Option(help="Certificates to trust; turns TLS on.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The agent's settings as TOML.")] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="State folder [~/.local/state/rigcanary].")
    ] = None,
    supply_watts: Annotated[
        float | None, typer.Option(min=1, help="Rating of the rig's power supplies together.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure links too: loads the cards for seconds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look at this rig as a second-hand buyer would: links, memory, cooling, drivers, broker.

    Reads only, and needs no root. Exit code 1 when a check failed; what cannot be seen fails none.

    Example: rigcanary doctor --mqtt broker.lan:1883

    Also: rigcanary doctor nccl, and rigcanary doctor topology plan.toml
    """
    if context.invoked_subcommand is not None:
        return
    import os

    from rich.console import Console

    from agents.doctor.diagnose import diagnose
    from agents.doctor.machine import Machine
    from agents.doctor.render import render
    from agents.doctor.table import Options
    from agents.endpoints import host_port
    from agents.settings import AgentSettings
    from rigcanary.config import load

    broker: dict[str, Any] = {
        "username": mqtt_user,
        "password_file": mqtt_password_file,
        "ca_file": mqtt_ca_file,
        "tls": True if mqtt_ca_file else None,
    }
    if mqtt is not None:
        broker["host"], broker["port"] = host_port(mqtt, "--mqtt", 1883)
    settings = load(
        AgentSettings,
        process="agent",
        config_file=config,
        overrides={"mqtt": {key: value for key, value in broker.items() if value is not None}},
    )
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    report = diagnose(
        Machine(),
        Options(
            mqtt=settings.mqtt,
            broker_given=bool(settings.mqtt.model_fields_set & {"host", "port"}),
            state=state or settings.state or Path(base) / "rigcanary",
            supply_watts=supply_watts,
            measure=measure,
        ),
    )
    if as_json:
        print(orjson.dumps(report.as_json()).decode())
    else:
        render(report, Console(highlight=False))
    if report.exit_code:
        raise typer.Exit(report.exit_code)


@app.command()
def nccl(as_json: AsJson = False) -> None:
    """Print the NCCL environment for this rig, as lines that a shell can read.

    Example: rigcanary doctor nccl > nccl.env
    """
    from agents.doctor.machine import Machine
    from agents.doctor.nccl import advise

    advice = advise(Machine())
    print(orjson.dumps(advice.as_json()).decode() if as_json else advice.as_shell())


@app.command()
def topology(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Link plan, TOML or JSON.")],
    live: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="tt-umd's cluster descriptor of the running rig."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a QSFP-DD link plan of Tenstorrent cards, and hold it against the live links.

    Example: rigcanary doctor topology plan.toml --live cluster.yaml
    """
    from agents.doctor import links, plan
    from agents.doctor.machine import Machine

    wanted = plan.read(file)
    errors = plan.check(wanted)
    summary = plan.summary(wanted)
    machine = Machine()
    differences: list[str] = []
    unknown: str | None = None
    if not errors:
        if live is not None:
            differences = links.against_descriptor(machine, wanted, live)
        else:
            differences, unknown = links.against_tt_smi(machine, wanted)
    if as_json:
        answer = {**summary, "errors": errors, "live": differences, "live_unknown": unknown}
        print(orjson.dumps(answer).decode())
    else:
        for line in [*errors, *differences]:
            print(line)
        if not errors:
            print(
                f"{file}: {summary['cards']} cards, {summary['cables']} cables, {wanted.layout}, "
                f"at most {summary['hops_most']} hops"
            )
        if unknown:
            print(f"not held against live links: {unknown}")
    if errors or differences:
        raise typer.Exit(1)
