"""``rigcanary agent``."""

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False)

Text = str | None


@app.command()
def main(
    mqtt: Annotated[Text, typer.Option(help="Broker, HOST or HOST:PORT.")] = None,
    site: Annotated[Text, typer.Option(help="Name of the place the rigs stand in.")] = None,
    node: Annotated[
        Text, typer.Option(help="Name of this rig; its host name unless given.")
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(help="Where readings come from; may be given more than once."),
    ] = None,
    input_: Annotated[
        Path | None,
        typer.Option("--input", help="A recorded output to read instead of the device."),
    ] = None,
    interval: Annotated[float | None, typer.Option(help="Seconds between samples.")] = None,
    mqtt_user: Annotated[Text, typer.Option(help="User name at the broker.")] = None,
    mqtt_password_file: Annotated[
        Path | None, typer.Option(help="File that holds the password.")
    ] = None,
    mqtt_ca_file: Annotated[
        Path | None, typer.Option(help="Certificates to trust; turns TLS on.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder for messages that wait for the broker."),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port of /metrics for Prometheus, on 127.0.0.1.")
    ] = None,
    speed: Annotated[
        float | None, typer.Option(help="Event seconds a wall second (sources sim and replay).")
    ] = None,
    sim_start: Annotated[
        Text, typer.Option(help="Event time at --sim-anchor: RFC 3339 or Unix seconds.")
    ] = None,
    sim_anchor: Annotated[
        Text, typer.Option(help="Wall time at which event time is --sim-start; now unless given.")
    ] = None,
    until: Annotated[
        float | None, typer.Option(help="End after this many seconds of event time.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print one message and end; no broker.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --once: the message as JSON.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="Settings as TOML.")] = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print the settings in force.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log routine matters too.")] = False,
) -> None:
    """Sample this rig's cards every 5 seconds and publish them over MQTT.

    Example: rigcanary agent --site lab-a --mqtt broker.lan:1883

    To see one message without a broker: rigcanary agent --once --json
    """
    import logging

    from agents.endpoints import host_port, unix_seconds
    from agents.settings import AgentSettings
    from rigcanary import config as settings_loader

    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    mqtt_options: dict[str, Any] = {
        "username": mqtt_user,
        "password_file": mqtt_password_file,
        "ca_file": mqtt_ca_file,
        "tls": True if mqtt_ca_file else None,
    }
    if mqtt is not None:
        mqtt_options["host"], mqtt_options["port"] = host_port(mqtt, "--mqtt", 1883)
    clock_options = {
        "speed": speed,
        "until_seconds": until,
        "start": None if sim_start is None else unix_seconds(sim_start, "--sim-start"),
        "anchor": None if sim_anchor is None else unix_seconds(sim_anchor, "--sim-anchor"),
    }
    settings = settings_loader.load(
        AgentSettings,
        process="agent",
        config_file=config,
        overrides={
            "site": site,
            "node": node,
            "sources": source or None,
            "input": input_,
            "interval_seconds": interval,
            "state": state,
            "metrics_port": metrics_port,
            "mqtt": _given(mqtt_options),
            "clock": _given(clock_options),
        },
    )
    if show_config:
        print(settings_loader.show(settings))
        return
    # The service brings paho-mqtt, which one printed message does not need.
    if once:
        from agents.once import event_line, once_events, only_events, table
        from agents.once import once as sample_once

        if only_events(settings):
            for event, line in once_events(settings):
                print(line if as_json else event_line(event))
            return
        message, encoded = sample_once(settings)
        print(encoded if as_json else table(message))
        return
    from agents.edge.service import serve

    serve(settings)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}
