"""``rigcanary``: a group whose subcommands are imported when they are used.

A rig that has only the extra ``agent`` can thus run ``rigcanary agent`` although the modules
of the other subcommands would not import there.
"""

import importlib
import os
import sys
from typing import Any, Final

import typer
from typer.core import TyperGroup

from contract.errors import ConfigError, RigcanaryError

# typer brings its own copy of click: the common base of its usage errors is reached by the
# one class of it that typer exports.
_CliError: Any = typer.BadParameter.__mro__[2]

COMMANDS: Final[dict[str, str]] = {
    "demo": "the whole path on this machine: simulated rigs to a moved training job",
    "serve": "the server side on this machine, with embedded brokers",
    "agent": "sample this rig's cards and publish them over MQTT",
    "bridge": "carry messages from MQTT to Kafka",
    "worker": "turn readings into windows, risks and decisions (Faust)",
    "influx-sink": "write history from Kafka to InfluxDB 2",
    "influx-init": "make InfluxDB's buckets, retention and downsampling",
    "runner": "run training jobs and move them off failing cards",
    "slurm": "drain Slurm nodes whose cards fail, requeue their jobs",
    "jobs": "list, submit, cancel and follow the jobs of a runner",
    "simulate": "write a simulated fleet data set",
    "replay": "publish a fleet data set over MQTT as its rigs would have",
    "convert": "convert a public data set into a fleet data set",
    "export": "write recorded history as a fleet data set",
    "deliveries": "look at webhooks that were not delivered, send them again",
    "dead-letters": "list unusable messages, and send chosen ones again",
    "failure": "record what really happened to a card",
    "episodes": "show the stories of cards, from the first sign to the release",
    "quarantine": "take a card out of service",
    "release": "give a card back to service",
    "retire": "take a card out of service for good",
    "silence": "let signs move nothing during maintenance",
    "breaker": "close a site's circuit breaker",
    "policy": "check and show the policy of decisions",
    "backtest": "try a policy on a fleet data set",
    "train": "train a failure predictor on a fleet data set",
    "evaluate": "judge a predictor on a fleet data set",
    "retrain": "export, train, evaluate and register a predictor in one go",
    "economics": "what failures cost a fleet, and what warnings are worth",
    "models": "list, promote and roll back versions of the predictor",
    "doctor": "look at this rig as a second-hand buyer would",
    "version": "print the version",
}
"""Subcommand → one line of help; the module is ``rigcanary.commands.NAME``, ``-`` as ``_``."""

EXTRAS: Final[dict[str, str]] = {
    "agent": "agent",
    "doctor": "agent",
    "replay": "agent,stream",
    "convert": "models",
    "bridge": "stream",
    "worker": "stream,models",
    "influx-sink": "stream",
    "influx-init": "stream",
    "runner": "runner",
    "slurm": "runner",
    "simulate": "models",
    "train": "models",
    "evaluate": "models",
    "retrain": "stream,models",
    "economics": "agent",
    "models": "models",
    "export": "stream",
    "deliveries": "stream",
    "failure": "stream",
    "dead-letters": "stream",
    "episodes": "stream",
    "quarantine": "stream",
    "release": "stream",
    "retire": "stream",
    "silence": "stream",
    "breaker": "stream",
    "policy": "stream",
    "backtest": "models",
    "demo": "all",
    "serve": "all",
}
"""Which extra of the distribution a subcommand needs, for the message when it is absent."""


class LazyGroup(TyperGroup):
    """Looks a subcommand's module up when the subcommand is named."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        try:
            module = importlib.import_module(f"rigcanary.commands.{cmd_name.replace('-', '_')}")
        except ModuleNotFoundError as error:
            if error.name is not None and error.name.startswith("rigcanary"):
                raise
            raise _missing_extra(cmd_name, error) from error
        command: Any = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # Plain help: the rich one would import every subcommand for its summary.
        super(TyperGroup, self).format_help(ctx, formatter)


def _missing_extra(command: str, error: ModuleNotFoundError) -> ConfigError:
    extra = EXTRAS.get(command, "all")
    if error.name == "pyarrow" and command == "agent":
        extra = EXTRAS["replay"]  # the agent's source replay reads what the command does
    return ConfigError(
        f"rigcanary {command} needs the Python package {error.name!r}, which is not installed; "
        f"install the extra: pip install 'rigcanary[{extra}]'"
    )


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Predicts failures of second-hand accelerator cards and moves training jobs off them.",
)


@app.callback()
def _root(
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks of errors."),
) -> None:
    """Predicts failures of second-hand accelerator cards and moves training jobs off them.

    Example: rigcanary demo --report out/
    """
    if debug:
        os.environ["RIGCANARY_DEBUG"] = "1"


def run(argv: list[str]) -> int:
    """Run one command line and return its exit code: 0 success, 1 failed, 2 wrong usage."""
    command: Any = typer.main.get_command(app)
    try:
        arguments = argv or ["--help"]
        result: Any = command.main(arguments, prog_name="rigcanary", standalone_mode=False)
    except _CliError as error:
        print(f"rigcanary: {error.format_message()} (see --help)", file=sys.stderr)
        return 2
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except RigcanaryError as error:
        if os.environ.get("RIGCANARY_DEBUG"):
            raise
        print(f"rigcanary: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        ours = (error.name or "").partition(".")[0] in {"rigcanary", "contract"}
        if ours or os.environ.get("RIGCANARY_DEBUG"):
            raise
        name = next((a for a in argv if not a.startswith("-")), "")
        print(f"rigcanary: {_missing_extra(name, error)}", file=sys.stderr)
        return 2
    return result if isinstance(result, int) else 0


def main() -> None:
    """Entry point of the ``rigcanary`` script."""
    sys.exit(run(sys.argv[1:]))
