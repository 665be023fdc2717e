"""Writes ``grafana/dashboards/*.json`` with Grafana's own SDK: ``python grafana/build.py``.

The written files are what Grafana loads; a test holds them to what this file makes. Prometheus
has what is now, InfluxDB (Flux) what was. Every panel says in its description what to do with it.
"""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.builders import (
    bargauge,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders.common import VizLegendOptions
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

OUT: Final = Path(__file__).parent / "dashboards"
PROMETHEUS: Final = DataSourceRef(type_val="prometheus", uid="rigcanary-prometheus")
INFLUX: Final = DataSourceRef(type_val="influxdb", uid="rigcanary-influxdb")
CARD: Final = 'site=~"$site",node=~"$node",device=~"$device"'
RIG: Final = 'site=~"$site",node=~"$node"'
SITE: Final = 'site=~"$site"'


class _Raw:
    """A query that the SDK has no builder for."""

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value

    def build(self) -> "_Raw":
        return self

    def to_json(self) -> dict[str, Any]:
        return self._value


def flux(measurement: str, fields: str, more: str = "") -> Any:
    """History of a card: fields of a measurement (contracts section 9), averaged to the pixel."""
    query = (
        'from(bucket: "rigcanary")\n'
        "  |> range(start: v.timeRangeStart, stop: v.timeRangeStop)\n"
        f'  |> filter(fn: (r) => r._measurement == "{measurement}")\n'
        '  |> filter(fn: (r) => r.node == "${node}" and r.device == "${device}")\n'
        f"  |> filter(fn: (r) => r._field =~ /^({fields})$/)\n"
        f"  |> aggregateWindow(every: v.windowPeriod, fn: mean, createEmpty: false){more}"
    )
    return _Raw({"refId": "A", "datasource": INFLUX.to_json(), "query": query})


@dataclass(frozen=True)
class Q:
    """A PromQL query and the legend of its series."""

    expr: str
    legend: str = ""


def _queries(panel: Any, queries: Iterable[Q], *, instant: bool = False) -> Any:
    for letter, q in zip("ABCDEFGH", queries, strict=False):
        one = prometheus.Dataquery().expr(q.expr).ref_id(letter).datasource(PROMETHEUS)
        if q.legend:
            one = one.legend_format(q.legend)
        if instant:
            one = one.instant().format(PromQueryFormat.TABLE)
        panel.with_target(one)
    return panel


def _steps(*steps: tuple[float | None, str]) -> Any:
    return (
        dashboard.ThresholdsConfig()
        .mode(ThresholdsMode.ABSOLUTE)
        .steps([Threshold(value=value, color=colour) for value, colour in steps])
    )


def line(title: str, what: str, unit: str, *queries: Q, width: int = 12, height: int = 8) -> Any:
    """Lines over time."""
    legend = VizLegendOptions().display_mode(LegendDisplayMode.LIST).show_legend(True)
    panel = timeseries.Panel().title(title).description(what).unit(unit).legend(legend)
    panel.datasource(PROMETHEUS).span(width).height(height).fill_opacity(5).line_width(1)
    return _queries(panel, queries)


def history(title: str, what: str, unit: str, query: Any, width: int = 12) -> Any:
    """Lines out of InfluxDB."""
    panel = timeseries.Panel().title(title).description(what).unit(unit).datasource(INFLUX)
    return panel.span(width).height(8).fill_opacity(5).line_width(1).with_target(query)


def number(title: str, what: str, query: Q, *steps: tuple[float | None, str], unit: str = "short",
           width: int = 4) -> Any:  # fmt: skip
    """One large number; it turns the colour of the last step that it has reached."""
    panel = stat.Panel().title(title).description(what).unit(unit).datasource(PROMETHEUS)
    panel.span(width).height(4).no_value("0")
    if steps:
        panel.thresholds(_steps(*steps))
    return _queries(panel, [query], instant=True)


def ranking(title: str, what: str, unit: str, query: Q, *steps: tuple[float | None, str]) -> Any:
    """Bars, one a series."""
    panel = bargauge.Panel().title(title).description(what).unit(unit).datasource(PROMETHEUS)
    panel.span(12).height(10).thresholds(_steps(*steps))
    one = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id("A").instant()
    return panel.with_target(one.datasource(PROMETHEUS))


def rows(title: str, what: str, query: Q, width: int = 12, height: int = 8) -> Any:
    """A table, one row a series; labels are columns."""
    panel = table.Panel().title(title).description(what).datasource(PROMETHEUS)
    panel.span(width).height(height).no_value("nothing").override_by_name(
        "Time", [DynamicConfigValue(id_val="custom.hidden", value=True)]
    )
    return _queries(panel, [query], instant=True)


def states(title: str, what: str, query: Q) -> Any:
    """Bands over time."""
    panel = statetimeline.Panel().title(title).description(what).datasource(PROMETHEUS)
    return _queries(panel.span(24).height(8), [query])


def variable(name: str, of: str, *, multi: bool = True) -> Any:
    """A choice out of a label's values."""
    one = dashboard.QueryVariable(name).label(name).query(f"label_values({of}, {name})")
    one.datasource(PROMETHEUS).refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).multi(multi)
    return one.include_all(multi).all_value(".*") if multi else one


def board(uid: str, title: str, what: str, *variables: Any) -> Any:
    """A dashboard without panels."""
    made = dashboard.Dashboard(title).uid(uid).description(what).tags(["rigcanary"])
    made.refresh("30s").time("now-3h", "now").timezone("browser").readonly()
    made.link(
        dashboard.DashboardLink("rigcanary")
        .type(DashboardLinkType.DASHBOARDS)
        .tags(["rigcanary"])
        .include_vars(True)
        .keep_time(True)
    )
    for one in variables:
        made.with_variable(one)
    return made


GREEN, YELLOW, RED = (None, "green"), (1.0, "yellow"), (1.0, "red")
HEALTH = ((None, "red"), (60.0, "yellow"), (80.0, "green"))
DEVICE = "rigcanary_device_present"


def fleet() -> Any:
    """The whole fleet: health, risk, state."""
    made = board(
        "rigcanary-fleet",
        "rigcanary · Fleet",
        "Which cards to look at first.",
        variable("site", DEVICE),
    )
    panels = (
        number("Cards", "Cards that speak.", Q(f"sum(site:rigcanary_device_present:count{{{SITE}}})")),
        number("Unhealthy", "Health under 60: look at the ranking below.",
               Q(f"sum(site:rigcanary_device_unhealthy:count{{{SITE}}})"), GREEN, YELLOW),
        number("Lost or hung", "Cards that their driver does not answer for.",
               Q(f'sum(site:rigcanary_device_state:count{{{SITE},state=~"lost|unresponsive"}})'),
               GREEN, RED),
        number("Breaker", "1: too many cards want to move at once, nothing more moves; "
               "`rigcanary breaker close` once you know why.",
               Q(f"max(rigcanary_breaker_open{{{SITE}}})"), GREEN, RED),
        number("Moves under way", "Migrations that the runner works on.",
               Q("sum(rigcanary_runner_migrations_open)"), GREEN, YELLOW),
        number("Webhooks waiting", "Decisions that a receiver has not answered.",
               Q("sum(rigcanary_worker_outbox_depth)"), GREEN, YELLOW),
        ranking("Risk of failing within 4 hours", "The ten highest. The threshold is the model's, "
                "see the worker's page.", "percentunit",
                Q(f"topk(10, rigcanary_device_failure_risk_ratio{{{SITE}}})", "{{node}} {{device}}"),
                (None, "green"), (0.5, "yellow"), (0.8, "red")),
        ranking("Lowest health", "The ten lowest; under 60 is unhealthy.", "short",
                Q(f"bottomk(10, rigcanary_device_health_score{{{SITE}}})", "{{node}} {{device}}"),
                *HEALTH),
        rows("Cards out of service or in trouble", "Every card whose state is not ok.",
             Q(f'rigcanary_device_state{{{SITE},state!="ok"}} == 1')),
        rows("What changed in the last hour", "Decisions by type; `rigcanary episodes` tells "
             "each story.", Q("sum by (type, cause) (increase(rigcanary_worker_decisions_total[1h])) > 0")),
        line("Cards by state", "Steps down are cards that went away.", "short",
             Q(f"sum by (state) (site:rigcanary_device_state:count{{{SITE}}})", "{{state}}")),
        line("Lowest health of a site", "A slow fall of all cards is air, not a card.", "short",
             Q(f"site:rigcanary_device_health_score:min{{{SITE}}}", "{{site}}")),
    )  # fmt: skip
    return _with(made, panels)


def rig() -> Any:
    """One rig, its cards side by side."""
    made = board(
        "rigcanary-rig",
        "rigcanary · Rig",
        "The cards of a rig side by side: what one does alone is the card, what all do is the rig.",
        variable("site", DEVICE),
        variable("node", f"{DEVICE}{{{SITE}}}", multi=False),
    )
    one = "{{device}}"
    panels = (
        states("State", "ok, lost, unresponsive, unknown.",
               Q(f"max by (device, state) (rigcanary_device_state{{{RIG}}})", "{{device}} {{state}}")),
        line("Risk within 4 hours", "The risk that decides.", "percentunit",
             Q(f"rigcanary_device_failure_risk_ratio{{{RIG}}}", one)),
        line("Health", "Under 60 is unhealthy.", "short",
             Q(f"rigcanary_device_health_score{{{RIG}}}", one)),
        line("Core temperature", "All rise: air or load. One rises: paste, dust or fan.", "celsius",
             Q(f"rigcanary_temperature_celsius{{{RIG}}}", one)),
        line("Power", "Load of the cards.", "watt", Q(f"rigcanary_power_watts{{{RIG}}}", one)),
        line("Fan speed", "A fan that is slower than its neighbours at equal duty wears out.", "rotrpm",
             Q(f"rigcanary_fan_speed_rpm{{{RIG}}}", one)),
        line("Regulator ripple", "Growing at equal load: capacitors age.", "volt",
             Q(f"rigcanary_vrm_ripple_volts{{{RIG}}}", one)),
    )  # fmt: skip
    return _with(made, panels)


def card() -> Any:
    """One card: every signal now and before."""
    made = board(
        "rigcanary-card",
        "rigcanary · Card",
        "Every signal of one card, now (Prometheus) and before (InfluxDB).",
        variable("site", DEVICE),
        variable("node", f"{DEVICE}{{{SITE}}}", multi=False),
        variable("device", f"{DEVICE}{{{RIG}}}", multi=False),
    )
    made.annotation(
        dashboard.AnnotationQuery()
        .name("events")
        .datasource(INFLUX)
        .enable(True)
        .icon_color("red")
        .target(
            _Raw(  # type: ignore[arg-type]  # the SDK has no Flux
                {
                    "refId": "Anno",
                    "query": 'from(bucket: "rigcanary") |> range(start: v.timeRangeStart, '
                    'stop: v.timeRangeStop) |> filter(fn: (r) => r._measurement == "event" and '
                    'r.node == "${node}" and r._field == "message")',
                }
            )
        )
    )
    signals = (
        ("Temperatures", "celsius", ("temperature_celsius", "memory_temperature_celsius", "ambient_celsius")),
        ("Power", "watt", ("power_watts",)),
        ("Fan speed", "rotrpm", ("fan_speed_rpm",)),
        ("Fan duty and use", "percentunit", ("fan_duty_ratio", "utilization_ratio")),
        ("Vibration", "accG", ("fan_vibration_g",)),
        ("Vibration's line", "hertz", ("fan_vibration_hertz",)),
        ("Regulator voltage", "volt", ("vrm_voltage_volts",)),
        ("Regulator ripple", "volt", ("vrm_ripple_volts",)),
        ("ECC errors", "short", ("ecc_corrected_total", "ecc_uncorrected_total")),
        ("PCIe lanes", "short", ("pcie_link_width", "pcie_link_width_max")),
    )  # fmt: skip
    panels = [
        number("Risk within 4 hours", "The risk that decides.",
               Q(f"rigcanary_device_failure_risk_ratio{{{CARD}}}"),
               (None, "green"), (0.5, "yellow"), (0.8, "red"), unit="percentunit", width=6),
        number("Health", "Under 60 is unhealthy.", Q(f"rigcanary_device_health_score{{{CARD}}}"),
               *HEALTH, width=6),
        number("Window", "Share of the last hour that holds samples; under half is no score.",
               Q(f"rigcanary_device_window_completeness_ratio{{{CARD}}}"),
               (None, "red"), (0.5, "green"), unit="percentunit", width=6),
        rows("Card", "What it says of itself.", Q(f"rigcanary_device_info{{{CARD}}}"), 6, 4),
        history("Risk, history", "Within 15, 60 and 240 minutes.", "percentunit",
                flux("risk", "risk_15m|risk_60m|risk_240m")),
        history("Health, history", "Under 60 is unhealthy.", "short", flux("risk", "health_score")),
    ]  # fmt: skip
    for title, unit, names in signals:
        now = (Q(f"rigcanary_{name}{{{CARD}}}", name) for name in names)
        panels.append(line(title, "Now; a sensor that the card lacks has no line.", unit, *now))
        fields = "|".join(
            name + ("_last" if name.endswith("_total") else "_mean") for name in names
        )
        panels.append(history(f"{title}, history", "Minute means.", unit, flux("minute", fields)))
    return _with(made, panels)


def training() -> Any:
    """The jobs and their moves."""
    made = board("rigcanary-training", "rigcanary · Training", "Jobs, and what moving them cost.")
    job = "{{name}} {{job}}"
    panels = (
        number("Jobs running", "Jobs by state are below.", Q('sum(rigcanary_runner_jobs{state="running"})')),
        number("Closed cards", "Cards and rigs that take no job.", Q("sum(rigcanary_runner_cordons)")),
        number("Moves in a day", "Migrations that completed.",
               Q('sum(increase(rigcanary_runner_migrations_total{outcome="completed"}[1d]))')),
        number("Moves that failed", "See `rigcanary jobs` and /v1/migrations.",
               Q('sum(increase(rigcanary_runner_migrations_total{outcome="failed"}[1d]))'), GREEN, RED),
        line("Loss", "A jump after a move would be a lost checkpoint.", "short",
             Q("rigcanary_runner_job_loss", job)),
        line("Goodput", "Share of the time that went into steps which were kept.", "percentunit",
             Q("rigcanary_runner_job_goodput_ratio", job)),
        line("Steps a second", "Throughput since the last start.", "short",
             Q("rigcanary_runner_job_steps_per_second", job)),
        line("Step", "Steps back are work done again.", "short", Q("rigcanary_runner_job_step", job)),
        line("Jobs by state", "Queued for long: no place is free.", "short",
             Q("sum by (state) (rigcanary_runner_jobs)", "{{state}}")),
        line("Length of a move", "Half and nine tenths of them take less.", "s",
             Q("histogram_quantile(0.5, sum by (le) (rate(rigcanary_runner_migration_seconds_bucket[1h])))",
               "half"),
             Q("histogram_quantile(0.9, sum by (le) (rate(rigcanary_runner_migration_seconds_bucket[1h])))",
               "nine tenths")),
    )  # fmt: skip
    return _with(made, panels)


def pipeline() -> Any:
    """The programs themselves."""
    made = board("rigcanary-pipeline", "rigcanary · Pipeline", "Whether warnings come in time.")
    rate = "[5m]"

    def quantile(name: str) -> str:
        return f"histogram_quantile(0.99, sum by (le) (rate({name}_bucket{rate})))"

    panels = (
        rows("What runs", "Versions of programs and of the model.",
             Q("max by (process, version, model_version) (rigcanary_build_info)"), 12, 6),
        number("Wait in Kafka", "Records that a worker has not read.",
               Q("max(rigcanary_worker_lag_records)"), GREEN, (1000.0, "red")),
        number("Behind event time", "How old the newest closed minute is.",
               Q("max(rigcanary_worker_watermark_lag_seconds)"), GREEN, (300.0, "red"), unit="s"),
        number("Dead letters in an hour", "`rigcanary dead-letters list` shows them.",
               Q("sum(increase(rigcanary_worker_dead_letters_total[1h]))"), GREEN, YELLOW),
        line("Messages", "From MQTT to Kafka, and read by workers.", "cps",
             Q(f"sum(rate(rigcanary_bridge_messages_total{rate}))", "bridge"),
             Q(f"sum(rate(rigcanary_worker_messages_total{rate}))", "worker")),
        line("Scorings", "Cards scored a second, and those without enough data.", "cps",
             Q(f"sum by (status) (rate(rigcanary_worker_scorings_total{rate}))", "{{status}}")),
        line("Lag", "Records by partition.", "short", Q("rigcanary_worker_lag_records", "{{partition}}")),
        line("Scoring a batch, 99 %", "Grows before the lag does.", "s",
             Q(quantile("rigcanary_worker_scoring_seconds"), "99 %")),
        line("Decision to delivery, 99 %", "From a decision's record to the receiver's answer.", "s",
             Q(quantile("rigcanary_worker_decision_to_delivery_seconds"), "99 %")),
        line("Delivery attempts", "By outcome.", "cps",
             Q(f"sum by (receiver, outcome) (rate(rigcanary_worker_delivery_attempts_total{rate}))",
               "{{receiver}} {{outcome}}")),
        line("Dead letters and repairs", "Bad input is one or the other.", "cps",
             Q(f"sum by (reason) (rate(rigcanary_worker_dead_letters_total{rate}))", "dead {{reason}}"),
             Q(f"sum by (kind) (rate(rigcanary_worker_repairs_total{rate}))", "repaired {{kind}}")),
        line("Errors", "Failures of the programs themselves.", "cps",
             Q(f"sum by (kind) (rate(rigcanary_worker_errors_total{rate}))", "worker {{kind}}"),
             Q(f"sum by (kind) (rate(rigcanary_runner_errors_total{rate}))", "runner {{kind}}")),
        line("Drift of features", "Against training; over 0.25 the model sees what it has not learned.",
             "short", Q("topk(5, rigcanary_worker_feature_drift_psi)", "{{feature}}")),
        line("Champion and challenger", "Mean risk of the fleet by the model that serves and by the one "
             "in its shadow.", "percentunit",
             Q("avg(rigcanary_device_failure_risk_ratio)", "champion"),
             Q("avg(rigcanary_device_challenger_risk_ratio)", "challenger")),
    )  # fmt: skip
    return _with(made, panels)


def _with(made: Any, panels: Iterable[Any]) -> Any:
    for panel in panels:
        made.with_panel(panel)
    return made


BOARDS: Final[dict[str, Callable[[], Any]]] = {
    "fleet": fleet,
    "rig": rig,
    "card": card,
    "training": training,
    "pipeline": pipeline,
}


def rendered() -> dict[str, str]:
    """The JSON of each dashboard, by its file's stem."""
    made = {}
    for name, make in BOARDS.items():
        value = json.loads(JSONEncoder(sort_keys=True).encode(make().build()))
        made[name] = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return made


def main() -> int:
    """Write the files."""
    OUT.mkdir(exist_ok=True)
    for name, value in rendered().items():
        (OUT / f"{name}.json").write_text(value, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
