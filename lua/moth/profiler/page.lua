-- luacheck: no max line length
--- The page of a profile's report: HTML with its script; DATA is replaced by the recording. Nothing else is loaded.
return [==[
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>moth profile</title>
<style>
:root { color-scheme: light dark; --bg: #fff; --fg: #222; --dim: #777; --line: #8884; --card: #f4f4f6; --mark: #d22 }
@media (prefers-color-scheme: dark) { :root { --bg: #17181b; --fg: #e4e4e6; --dim: #999; --card: #232428; --mark: #f66 } }
body { font: 14px/1.4 system-ui, sans-serif; background: var(--bg); color: var(--fg); margin: 1.5rem auto; max-width: 1200px;
  padding: 0 1rem }
h1 { font-size: 1.3rem; margin: 0 } h2 { font-size: 1rem; margin: 1.4rem 0 .4rem }
.dim { color: var(--dim) } #cards { display: flex; flex-wrap: wrap; gap: .6rem; margin: .8rem 0 }
.card { background: var(--card); padding: .4rem .8rem; border-radius: 6px } .card b { display: block; font-size: 1.1rem }
canvas { width: 100%; display: block; border: 1px solid var(--line); cursor: crosshair }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .15rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap }
th:first-child, td:first-child, th:last-child, td:last-child { text-align: left; max-width: 26rem; overflow: hidden;
  text-overflow: ellipsis }
th { cursor: pointer; position: sticky; top: 0; background: var(--bg) } tr.on td { color: var(--mark) }
td.share { background: linear-gradient(90deg, #48f5 var(--w), transparent var(--w)) }
.dot { display: inline-block; width: .6rem; height: .6rem; border-radius: 50%; margin-right: .4rem }
#tip { position: fixed; pointer-events: none; background: var(--card); border: 1px solid var(--line); padding: .3rem .6rem;
  border-radius: 4px; display: none; max-width: 40rem; white-space: pre-wrap } input { width: 20rem; padding: .2rem }
</style></head><body>
<h1>moth profile</h1><div class="dim" id="about"></div><div id="cards"></div>
<h2>Timeline <span class="dim">wheel zooms, dragging moves, a click marks a name, double click resets</span></h2>
<canvas id="timeline" height="100"></canvas>
<h2>Flame graph <span class="dim">a click opens, a click on the top row goes back</span></h2>
<canvas id="flame" height="100"></canvas>
<h2>Calls <input id="filter" placeholder="filter by name or place" aria-label="filter"></h2>
<table id="table"><thead></thead><tbody></tbody></table><div id="tip"></div>
<script id="data" type="application/json">DATA</script>
<script>
"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const hue = { forward: 210, backward: 28, optimizer: 275, loader: 140, communication: 330 };
const el = (id) => document.getElementById(id);
const time = (us) => us >= 1e6 ? (us / 1e6).toFixed(3) + " s" : us >= 1e3 ? (us / 1e3).toFixed(3) + " ms" : us.toFixed(2) + " us";
const shade = (i) => 58 + (i * 37) % 22;
const color = (part, name, dim) => `hsl(${hue[part] ?? 0} ${dim || !part ? 8 : 60}% ${shade(name)}%)`;
let marked = -1;
// Events: columns, starts as differences. Depths and own times are computed here, so that the file has one truth.
const tracks = D.tracks.map((t) => {
  const n = t.name.length, start = new Float64Array(n), stop = new Float64Array(n), own = new Float64Array(n);
  const depth = new Int32Array(n), part = new Array(n); let at = 0, deepest = 0;
  for (let i = 0; i < n; i++) {
    at += t.start[i]; start[i] = at / 1000; stop[i] = (at + t.length[i]) / 1000; own[i] = stop[i] - start[i];
    const up = t.parent[i];
    if (up >= 0) { own[up] -= own[i]; depth[i] = depth[up] + 1; deepest = Math.max(deepest, depth[i]); }
    part[i] = up >= 0 && part[up] !== "forward" && D.parts[t.part[i]] !== "communication" ? part[up] : D.parts[t.part[i]];
  }
  return { label: t.label, device: !!t.device, n, start, stop, own, depth, part, deepest, name: t.name, parent: t.parent, place: t.place };
});
const rows = new Map(); let calls = 0;
const hosts = tracks.filter((t) => !t.device); // what devices did is in the timeline alone
for (const t of hosts) for (let i = 0; i < t.n; i++) {
  const key = t.name[i]; let r = rows.get(key); calls++;
  if (!r) rows.set(key, r = { key, name: D.names[key], part: t.part[i], count: 0, total: 0, own: 0, places: new Map() });
  r.count++; r.own += t.own[i];
  let up = t.parent[i]; while (up >= 0 && t.name[up] !== key) up = t.parent[up];
  if (up < 0) r.total += t.stop[i] - t.start[i];
  if (t.place[i] >= 0) r.places.set(t.place[i], (r.places.get(t.place[i]) ?? 0) + t.own[i]);
}
for (const r of rows.values()) {
  let best = -1, most = -1; for (const [p, v] of r.places) if (v > most) { best = p; most = v; }
  r.place = best >= 0 ? D.places[best] : ""; r.mean = r.total / r.count;
}
el("about").textContent = D.about;
for (const [label, value] of D.cards.concat([["calls", String(calls)]])) {
  const c = document.createElement("div"), b = document.createElement("b"); c.className = "card"; b.textContent = value;
  c.append(b, label); el("cards").append(c);
}
function tip(event, text) {
  const t = el("tip"); if (!text) { t.style.display = "none"; return; }
  t.textContent = text; t.style.display = "block"; t.style.left = Math.min(event.clientX + 12, innerWidth - 320) + "px";
  t.style.top = event.clientY + 14 + "px";
}
function fit(canvas, height) {
  const r = devicePixelRatio || 1, w = canvas.clientWidth || 1100; canvas.width = w * r; canvas.height = height * r;
  canvas.style.height = height + "px"; const c = canvas.getContext("2d"); c.scale(r, r); c.font = "11px monospace"; return [c, w];
}
function label(c, text, x, w, y) {
  const n = Math.floor((w - 6) / 6.7); if (n < 2) return; c.fillStyle = "#000c";
  c.fillText(text.length > n ? text.slice(0, n - 1) + "…" : text, x + 3, y);
}
// ---- timeline
const H = 16, whole = D.duration / 1000; let from = 0, to = whole, dragging = null, moved = false;
const tops = []; let height = 6; for (const t of tracks) { tops.push(height); height += (t.deepest + 1) * H + 14; }
let boxes = [];
function drawTimeline() {
  const [c, w] = fit(el("timeline"), Math.max(height, 60)), scale = w / (to - from); boxes = [];
  tracks.forEach((t, k) => {
    const last = new Float64Array(t.deepest + 2).fill(-1), dim = getComputedStyle(document.body).color;
    c.fillStyle = dim; c.fillText(t.label, 2, tops[k] + 9);
    let lo = 0, hi = t.n; while (lo < hi) { const m = (lo + hi) >> 1; if (t.reach[m] < from) lo = m + 1; else hi = m; }
    for (let i = lo; i < t.n && t.start[i] <= to; i++) {
      if (t.stop[i] < from) continue;
      const x = Math.max(0, (t.start[i] - from) * scale), e = Math.min(w, (t.stop[i] - from) * scale), d = t.depth[i];
      if (e - last[d] < 0.7 && e - x < 0.7) continue;
      last[d] = e; const y = tops[k] + 12 + d * H, b = Math.max(e - x, 0.7);
      c.fillStyle = color(t.part[i], t.name[i], marked >= 0 && marked !== t.name[i]); c.fillRect(x, y, b, H - 1);
      if (b > 20) label(c, D.names[t.name[i]], x, b, y + 11);
      boxes.push([x, y, b, k, i]);
    }
  });
}
for (const t of tracks) { // the latest end of the events up to each one: where the visible range begins
  t.reach = new Float64Array(t.n); let m = 0; for (let i = 0; i < t.n; i++) { m = Math.max(m, t.stop[i]); t.reach[i] = m; }
}
const hit = (e) => { for (let j = boxes.length - 1; j >= 0; j--) { const b = boxes[j];
  if (e.offsetX >= b[0] && e.offsetX <= b[0] + b[2] && e.offsetY >= b[1] && e.offsetY < b[1] + H) return b; } };
el("timeline").addEventListener("wheel", (e) => {
  e.preventDefault(); const w = el("timeline").clientWidth || 1100, at = from + (to - from) * e.offsetX / w;
  const f = e.deltaY < 0 ? 0.8 : 1.25; from = Math.max(0, at - (at - from) * f); to = Math.min(whole, at + (to - at) * f);
  drawTimeline();
}, { passive: false });
el("timeline").addEventListener("pointerdown", (e) => { dragging = [e.offsetX, from, to]; moved = false; });
addEventListener("pointerup", () => { dragging = null; });
el("timeline").addEventListener("pointermove", (e) => {
  if (dragging) {
    const w = el("timeline").clientWidth || 1100, by = (dragging[0] - e.offsetX) / w * (dragging[2] - dragging[1]);
    moved = moved || Math.abs(dragging[0] - e.offsetX) > 3;
    const d = Math.max(-dragging[1], Math.min(by, whole - dragging[2])); from = dragging[1] + d; to = dragging[2] + d;
    drawTimeline(); return;
  }
  const b = hit(e); if (!b) return tip(e); const t = tracks[b[3]], i = b[4];
  tip(e, `${D.names[t.name[i]]}\ntotal ${time(t.stop[i] - t.start[i])}, own ${time(t.own[i])}\nat ${time(t.start[i])}` +
    (t.place[i] >= 0 ? "\n" + D.places[t.place[i]] : ""));
});
el("timeline").addEventListener("pointerleave", (e) => tip(e));
el("timeline").addEventListener("click", (e) => { if (moved) return; const b = hit(e); mark(b ? tracks[b[3]].name[b[4]] : -1); });
el("timeline").addEventListener("dblclick", () => { from = 0; to = whole; drawTimeline(); });
function mark(name) { marked = marked === name ? -1 : name; drawTimeline(); drawFlame(); drawTable(); }
// ---- flame graph
const root = { key: -1, label: "all", total: 0, count: 1, children: new Map() };
for (const t of hosts) { const nodes = new Array(t.n);
  for (let i = 0; i < t.n; i++) {
    const up = t.parent[i] >= 0 ? nodes[t.parent[i]] : root; let f = up.children.get(t.name[i]);
    if (!f) up.children.set(t.name[i], f = { key: t.name[i], label: D.names[t.name[i]], part: t.part[i], total: 0, count: 0,
      children: new Map(), up });
    f.total += t.stop[i] - t.start[i]; f.count++; nodes[i] = f; if (up === root) root.total += t.stop[i] - t.start[i];
  } }
let open = root, flames = [];
function drawFlame() {
  const list = [], walk = (f, x, w, d) => { list.push([f, x, w, d]);
    const kids = [...f.children.values()].sort((a, b) => b.total - a.total);
    for (const k of kids) { const kw = w * k.total / f.total; if (kw > 0.5) walk(k, x, kw, d + 1); x += kw; } };
  const width = el("flame").clientWidth || 1100; if (open.total > 0) walk(open, 0, width, 0);
  const [c] = fit(el("flame"), (list.reduce((m, b) => Math.max(m, b[3]), 0) + 1) * H + 2); flames = list;
  for (const [f, x, w, d] of list) {
    c.fillStyle = color(f.part, f.key + 1, marked >= 0 && marked !== f.key); c.fillRect(x, d * H, Math.max(w - 0.5, 0.5), H - 1);
    label(c, f.label, x, w, d * H + 11);
  }
}
const flameAt = (e) => flames.find((b) => e.offsetX >= b[1] && e.offsetX <= b[1] + b[2] && Math.floor(e.offsetY / H) === b[3]);
el("flame").addEventListener("click", (e) => { const b = flameAt(e); if (!b) return; open = b[0] === open ? open.up ?? root : b[0];
  drawFlame(); });
el("flame").addEventListener("pointermove", (e) => { const b = flameAt(e);
  tip(e, b && `${b[0].label}\n${time(b[0].total)} in ${b[0].count} calls, ${(100 * b[0].total / root.total).toFixed(1)} %`); });
el("flame").addEventListener("pointerleave", (e) => tip(e));
// ---- table
const columns = [["Name", "name"], ["Own", "own"], ["Own %", "share"], ["Total", "total"], ["Mean", "mean"], ["Calls", "count"],
  ["Mostly from", "place"]];
const sum = [...rows.values()].reduce((s, r) => s + r.own, 0) || 1; for (const r of rows.values()) r.share = r.own / sum;
let by = "own", down = true; const head = document.createElement("tr");
for (const [title, key] of columns) {
  const th = document.createElement("th"); th.textContent = title; th.tabIndex = 0; th.dataset.key = key;
  const sort = () => { down = by === key ? !down : key !== "name" && key !== "place"; by = key; drawTable(); };
  th.addEventListener("click", sort); th.addEventListener("keydown", (e) => { if (e.key === "Enter") sort(); }); head.append(th);
}
document.querySelector("#table thead").append(head);
el("filter").addEventListener("input", () => drawTable());
function drawTable() {
  const wanted = el("filter").value.toLowerCase(), body = document.querySelector("#table tbody"); body.textContent = "";
  for (const th of head.children) th.ariaSort = th.dataset.key === by ? (down ? "descending" : "ascending") : "none";
  const list = [...rows.values()].filter((r) => (r.name + " " + r.place).toLowerCase().includes(wanted));
  list.sort((a, b) => (a[by] < b[by] ? -1 : a[by] > b[by] ? 1 : 0) * (down ? -1 : 1));
  for (const r of list) {
    const tr = document.createElement("tr"); if (marked === r.key) tr.className = "on";
    const cells = [r.name, time(r.own), (100 * r.share).toFixed(1) + " %", time(r.total), time(r.mean), String(r.count), r.place];
    cells.forEach((text, k) => { const td = document.createElement("td"); td.textContent = text; td.title = text;
      if (k === 0) { const dot = document.createElement("span"); dot.className = "dot"; dot.style.background = color(r.part, 3);
        td.prepend(dot); }
      if (k === 2) { td.className = "share"; td.style.setProperty("--w", 100 * r.share + "%"); } tr.append(td); });
    tr.addEventListener("click", () => mark(r.key)); body.append(tr);
  }
}
addEventListener("resize", () => { drawTimeline(); drawFlame(); });
drawTimeline(); drawFlame(); drawTable();
</script></body></html>
]==]
