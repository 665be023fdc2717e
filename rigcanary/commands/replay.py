"""``rigcanary replay``."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)

Text = str | None


@app.command()
def main(
    dataset: Annotated[Path, typer.Argument(help="Folder of a fleet data set.")],
    mqtt: Annotated[str, typer.Option(help="Broker, HOST:PORT.")] = "127.0.0.1:1883",
    speed: Annotated[
        str, typer.Option(help="Data seconds a second; 0 or max: as fast as acknowledged.")
    ] = "1",
    now: Annotated[
        bool, typer.Option("--now", help="Shift time stamps so that the last is the present.")
    ] = False,
    site: Annotated[Text, typer.Option(help="Site to publish as, instead of the data's.")] = None,
    max_pause: Annotated[
        float | None, typer.Option(min=0.0, help="Longest wait in a gap of the data, in seconds.")
    ] = None,
    mqtt_user: Annotated[Text, typer.Option(help="User name at the broker.")] = None,
    mqtt_password_file: Annotated[
        Path | None, typer.Option(help="File that holds the password.")
    ] = None,
    mqtt_ca_file: Annotated[
        Path | None, typer.Option(help="Certificates to trust; turns TLS on.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Publish a recorded fleet data set in time order, as its rigs would have.

    Example: rigcanary replay out/fleet --mqtt 127.0.0.1:1883 --speed 60 --now
    """
    import dataclasses
    import logging
    import signal
    import threading

    import orjson

    from agents.edge.replay import Replay, ReplayOptions
    from agents.endpoints import host_port, speed_of
    from agents.settings import MqttSettings
    from contract.errors import ConfigError
    from contract.topics import is_name

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    if site is not None and not is_name(site):
        raise ConfigError(f"--site {site!r} is not 1–64 of A–Z a–z 0–9 . _ -")
    host, port = host_port(mqtt, "--mqtt", 1883)
    settings = MqttSettings(
        host=host,
        port=port,
        username=mqtt_user,
        password_file=mqtt_password_file,
        tls=mqtt_ca_file is not None,
        ca_file=mqtt_ca_file,
        max_inflight=50,
    )
    stop = threading.Event()
    options = ReplayOptions(settings, speed_of(speed), now, site, max_pause)
    replay = Replay(dataset, options, stop)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    result = replay.run()
    if as_json:
        print(orjson.dumps(dataclasses.asdict(result)).decode())
    else:
        print(
            f"{result.samples_acknowledged} of {result.rows} samples acknowledged in "
            f"{result.messages_acknowledged} of {result.messages_sent} messages sent, "
            f"{result.nodes} nodes, {result.seconds:.1f} s"
        )
    if not result.complete:
        raise typer.Exit(1)
