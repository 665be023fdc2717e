// The fleet page: reads api/fleet and api/decisions, redraws in place. All text that comes from
// rigs goes in as text nodes, never as markup.
"use strict";

const PAGE = 100;
const EVERY_MS = 3000;
const STATE_CLASS = {
  ok: "good", suspect: "warn", quarantined: "move", probation: "move", retired: "quiet", lost: "bad", unresponsive: "bad",
  absent: "quiet", unknown: "quiet",
};
const SVG = "http://www.w3.org/2000/svg";

const element = (id) => document.getElementById(id);
const view = { offset: 0, timer: 0, running: false, again: false };
const shown = { rows: [] };

function percent(risk) {
  if (risk === null) return "–";
  const value = risk * 100;
  return (value < 9.95 ? value.toFixed(1) : value.toFixed(0)) + " %";
}

// The score is 60 exactly where the risk reaches the model's threshold, so one rule colours both.
function healthClass(score) {
  if (score === null) return "quiet";
  return score < 60 ? "bad" : score < 80 ? "warn" : "good";
}

// Risks 0..1 as pieces of a line: a minute without a score is a gap, not a zero.
function sparkPoints(risks) {
  const pieces = [];
  let piece = [];
  const start = 60 - risks.length;
  risks.forEach((risk, i) => {
    if (risk === null) {
      if (piece.length) pieces.push(piece);
      piece = [];
    } else {
      piece.push(`${((start + i) * 2).toFixed(0)},${(21 - Math.min(risk, 1) * 20).toFixed(1)}`);
    }
  });
  if (piece.length) pieces.push(piece);
  return pieces.map((points) => (points.length === 1 ? [points[0], points[0]] : points).join(" "));
}

function drawSpark(cell, risks) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 120 22");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  for (const points of sparkPoints(risks)) {
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("points", points);
    svg.append(line);
  }
  cell.replaceChildren(svg);
}

const COLUMNS = ["rig", "card", "model", "risk", "spark", "health", "state", "celsius", "watts"];
const NUMERIC = new Set(["risk", "health", "celsius", "watts"]);

function makeRow() {
  const row = document.createElement("tr");
  const cells = {};
  for (const name of COLUMNS) {
    const cell = document.createElement("td");
    cell.className = name;
    cells[name] = cell;
    row.append(cell);
  }
  return { row, cells, risks: null };
}

function put(cell, name, text, extra) {
  if (cell.textContent !== text) cell.textContent = text;
  const wanted = [name, NUMERIC.has(name) ? "n" : "", extra || ""].filter(Boolean).join(" ");
  if (cell.className !== wanted) cell.className = wanted;
}

function whole(value) {
  return value === null || value === undefined ? "–" : value.toFixed(0);
}

function fillRow(entry, device) {
  const { cells } = entry;
  const health = healthClass(device.health_score);
  const index = device.index === null ? "" : `${device.index} · `;
  put(cells.rig, "rig", `${device.site}/${device.node}`);
  put(cells.card, "card", index + device.device);
  cells.card.title = device.device;
  put(cells.model, "model", device.model || "–", "quiet");
  put(cells.risk, "risk", percent(device.risk), health);
  put(cells.health, "health", whole(device.health_score), health);
  const waiting = device.status !== null && device.status !== "scored" && device.state === "ok";
  const share = device.completeness === null ? "" : ` (${Math.floor(device.completeness * 100)} %)`;
  put(cells.state, "state", waiting ? `filling${share}` : device.state,
    waiting ? "quiet" : STATE_CLASS[device.state]);
  put(cells.celsius, "celsius", whole(device.values.temperature_celsius));
  put(cells.watts, "watts", whole(device.values.power_watts));
  const risks = device.risks.join();
  if (entry.risks !== risks) {
    entry.risks = risks;
    drawSpark(cells.spark, device.risks);
  }
  cells.spark.className = `spark ${health}`;
}

function showFleet(fleet) {
  const body = element("cards");
  while (shown.rows.length < fleet.devices.length) {
    const entry = makeRow();
    shown.rows.push(entry);
    body.append(entry.row);
  }
  while (shown.rows.length > fleet.devices.length) shown.rows.pop().row.remove();
  fleet.devices.forEach((device, i) => fillRow(shown.rows[i], device));

  const states = Object.entries(fleet.states).filter(([, count]) => count > 0);
  const words = states.map(([state, count]) => `${count} ${state}`).join(", ");
  const at = fleet.newest_minute === null ? "" :
    ` · minute of ${new Date(fleet.newest_minute * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;
  element("summary").textContent =
    `${fleet.nodes_total} rigs, ${fleet.devices_total} cards${words ? ": " + words : ""}${at}`;

  const last = fleet.offset + fleet.devices.length;
  element("place").textContent =
    fleet.matching ? `${fleet.offset + 1}–${last} of ${fleet.matching}` : "";
  element("previous").disabled = fleet.offset === 0;
  element("next").disabled = last >= fleet.matching;
  element("empty").hidden = fleet.matching > 0;

  const notes = [];
  if (fleet.breakers_open.length) {
    notes.push(`Circuit breaker open at ${fleet.breakers_open.join(", ")}: no more cards are moved.`);
  }
  if (fleet.worker.not_ready.length) notes.push(`Not ready: ${fleet.worker.not_ready.join("; ")}.`);
  if (fleet.worker.dry_run) notes.push("Dry run: decisions are made but nothing is moved.");
  notice(notes.join(" "));
}

function notice(text) {
  element("notice").textContent = text;
  element("notice").hidden = !text;
}

function sentence(decision) {
  const data = decision.data;
  const where = [data.site, data.node, data.device].filter(Boolean).join("/");
  const parts = [decision.type.replace(".", " ").replace("_", " "), where];
  if (data.cause) parts.push(`· ${data.cause}`);
  if (typeof data.risk === "number") parts.push(`· risk ${percent(data.risk)}`);
  const evidence = Array.isArray(data.evidence) ? data.evidence.slice(0, 3) : [];
  if (evidence.length) parts.push(`· ${evidence.map((item) => item.sensor).join(", ")}`);
  if (data.reason) parts.push(`· ${data.reason}`);
  if (decision.dry_run) parts.push("· dry run");
  return parts.join(" ");
}

function showDecisions(decisions) {
  const items = decisions.map((decision) => {
    const item = document.createElement("li");
    const time = document.createElement("time");
    const at = decision.data.decided_at || decision.data.at || "";
    time.dateTime = at;
    time.textContent = at.slice(0, 19).replace("T", " ");
    item.append(time, sentence(decision));
    return item;
  });
  element("decisions").replaceChildren(...items);
  element("quiet").hidden = items.length > 0;
}

async function get(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(10000) });
  if (!response.ok) throw new Error(`${path} answered ${response.status}`);
  return response.json();
}

async function refresh() {
  if (view.running) {
    view.again = true;
    return;
  }
  view.running = true;
  clearTimeout(view.timer);
  try {
    const query = new URLSearchParams({
      offset: view.offset, limit: PAGE, sort: element("sort").value, search: element("search").value,
    });
    const [fleet, list] = await Promise.all([get(`api/fleet?${query}`), get("api/decisions?limit=30")]);
    if (view.offset > 0 && fleet.devices.length === 0) {
      view.offset = 0;
      view.again = true;
    } else {
      showFleet(fleet);
      showDecisions(list.decisions);
    }
  } catch (error) {
    notice(`The worker does not answer (${error.message}); the figures below are old. Trying again.`);
  }
  view.running = false;
  const delay = view.again ? 0 : EVERY_MS;
  view.again = false;
  // A hidden tab asks for nothing; it catches up when it is looked at again.
  if (!document.hidden || delay === 0) view.timer = setTimeout(refresh, delay);
}

function turn(step) {
  view.offset = Math.max(0, view.offset + step);
  refresh();
}

function start() {
  element("previous").addEventListener("click", () => turn(-PAGE));
  element("next").addEventListener("click", () => turn(PAGE));
  for (const [id, kind] of [["search", "input"], ["sort", "change"]]) {
    element(id).addEventListener(kind, () => {
      view.offset = 0;
      refresh();
    });
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  refresh();
}

start();
