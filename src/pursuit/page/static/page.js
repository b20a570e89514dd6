// What the page needs beyond htmx: times in the reader's zone, plots, the drawer, keys, and notifications.
// Everything here only improves what the server rendered; each view can be read without it.
"use strict";

(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Times: the server writes UTC, the reader's zone is known here alone.
  const clock = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  function showTimes(root) {
    for (const time of all("time[datetime]", root)) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      time.title = time.dateTime;
      time.textContent = clock.format(at);
    }
  }

  // The output of a command stays at its end, unless the reader has scrolled up.
  function followLogs(root) {
    for (const log of all("pre[data-follow]", root)) {
      if (log.dataset.followed === undefined) {
        log.dataset.followed = "";
        log.addEventListener("scroll", () => {
          log.dataset.up = log.scrollTop + log.clientHeight < log.scrollHeight - 24 ? "1" : "";
        });
      }
      if (!log.dataset.up) log.scrollTop = log.scrollHeight;
    }
  }

  // Functions that run on the whole document and on what a live update brought.
  const enhancers = [showTimes, followLogs];
  const enhance = (root) => enhancers.forEach((one) => one(root));
  window.pursuitPage = { all, enhancers, enhance };

  document.addEventListener("htmx:after:swap", () => enhance(document));
  document.addEventListener("DOMContentLoaded", () => enhance(document));

  // The connection: the reader must know when what is shown may be old.
  function connected(is) {
    const note = document.getElementById("connection");
    if (note) note.hidden = is;
  }
  document.addEventListener("htmx:sse:error", () => connected(false));
  document.addEventListener("htmx:sse:after:connection", () => connected(true));

  // The drawer: a link with data-drawer opens beside the page; without script it opens as a page of its own.
  document.addEventListener("click", async (event) => {
    const link = event.target.closest("a[data-drawer]");
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
      const drawer = document.getElementById("drawer");
      if (!drawer) return;
      event.preventDefault();
      await openDrawer(drawer, link);
    } else if (event.target.closest("[data-close]")) {
      closeDrawer();
    }
  });

  let opener = null;
  async function openDrawer(drawer, link) {
    const body = drawer.querySelector("[data-body]");
    await htmx.ajax("GET", link.href, { target: body, swap: "innerHTML" });
    opener = link;
    for (const row of all("[data-row][aria-current]")) row.removeAttribute("aria-current");
    link.closest("[data-row]")?.setAttribute("aria-current", "true");
    drawer.hidden = false;
    drawer.focus();
  }
  function closeDrawer() {
    const drawer = document.getElementById("drawer");
    if (!drawer || drawer.hidden) return;
    drawer.hidden = true;
    drawer.querySelector("[data-body]").replaceChildren(); // a key must not answer a question that is not shown
    opener?.focus();
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") closeDrawer();
  });

  // Plots: one figure for each metric with its best so far and its target, and one for the budget.
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 4, notation: "compact" });
  const exact = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 7 });

  function bestSoFar(values, op) {
    if (!op || !"<>".includes(op[0])) return null;
    const better = op[0] === "<" ? Math.min : Math.max;
    let best = null;
    return values.map((value) => (best = best === null ? value : better(best, value)));
  }

  function options(box, series, more = {}) {
    const axis = { stroke: style("--soft"), grid: { stroke: style("--rule"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    return {
      width: Math.max(240, box.clientWidth), height: 200, cursor: { y: false }, legend: { show: series.length > 1, live: false },
      scales: { x: { time: false }, y: more.range ? { range: more.range } : {} },
      axes: [
        { ...axis, values: (_plot, ticks) => ticks.map((one) => (Number.isInteger(one) ? exact.format(one) : "")) },
        { ...axis, size: 56, values: (_plot, ticks) => ticks.map((one) => (more.share ? Math.round(one * 100) + " %" : short.format(one))) },
      ],
      series: [{ label: "Iteration", value: (_plot, one) => (one == null ? "" : exact.format(one)) }, ...series],
      ...more.options,
    };
  }

  function figure(host, key, caption, note) {
    const made = document.createElement("figure");
    made.className = "card";
    made.dataset.key = key;
    const head = document.createElement("figcaption");
    head.append(caption);
    const side = document.createElement("span");
    side.className = "soft";
    side.textContent = note;
    head.append(side);
    const box = document.createElement("div");
    made.append(head, box);
    host.append(made);
    return { box, side };
  }

  function shown(host, key, caption, note, data, series, more) {
    const drawn = (host.drawn ??= new Map());
    const known = drawn.get(key);
    if (known) {
      known.side.textContent = note;
      known.plot.setData(data);
      return;
    }
    const { box, side } = figure(host, key, caption, note);
    drawn.set(key, { box, side, plot: new uPlot(options(box, series, more), data, box) });
  }

  function drawMetric(host, row) {
    const xs = row.points.map((one) => one[0]);
    const ys = row.points.map((one) => one[1]);
    const trace = bestSoFar(ys, row.target?.op);
    const value = (_plot, one) => (one == null ? "" : exact.format(one));
    const data = [xs, ys];
    const series = [{ label: "Value", stroke: style("--accent"), width: 1.5, points: { show: xs.length < 60, size: 4 }, value }];
    if (trace) {
      data.push(trace);
      series.push({ label: "Best so far", stroke: style("--good"), width: 1.5, dash: [5, 3], points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }), value });
    }
    if (row.target) {
      data.push(xs.map(() => row.target.target));
      series.push({ label: "Target", stroke: style("--goal"), width: 1, dash: [3, 3], points: { show: false }, value });
    }
    const best = trace ? " \u00b7 best " + exact.format(trace[trace.length - 1]) : "";
    const goal = row.target ? " \u00b7 target " + row.target.op + " " + exact.format(row.target.target) : "";
    shown(host, "metric " + row.metric, row.metric, "last " + exact.format(ys[ys.length - 1]) + best + goal, data, series, {});
  }

  const LINES = ["--accent", "--good", "--goal", "--bad", "--calm"];
  function drawBudget(host, rows, live) {
    const labels = JSON.parse(host.dataset.caps);
    const used = rows.filter((row) => row.points.length > 1);
    if (!used.length) return;
    // The projection continues the line of the last half of the mission down to nothing left.
    const last = Math.max(...used.map((row) => row.points[row.points.length - 1][0]));
    const ends = used.map((row) => {
      if (!live) return Infinity;
      const end = row.points[row.points.length - 1];
      const start = row.points[Math.floor((row.points.length - 1) / 2)];
      const fall = (start[1] - end[1]) / (end[0] - start[0] || 1);
      return fall > 0 ? end[0] + end[1] / fall : Infinity;
    });
    const empty = Math.min(...ends);
    const until = live ? Math.min(empty, last * 3) : last;
    const xs = [...new Set([...used.flatMap((row) => row.points.map((one) => one[0])), until])].sort((a, b) => a - b);
    const data = [xs];
    const series = [];
    used.forEach((row, index) => {
      const known = new Map(row.points);
      const stroke = style(LINES[index % LINES.length]);
      const value = (_plot, one) => (one == null ? "" : Math.round(one * 100) + " %");
      data.push(xs.map((x) => known.get(x) ?? null));
      series.push({ label: labels[row.name], stroke, width: 1.5, points: { show: false }, spanGaps: true, value });
      const end = row.points[row.points.length - 1];
      const left = Number.isFinite(ends[index]) ? Math.max(0, end[1] * (1 - (until - end[0]) / (ends[index] - end[0]))) : end[1];
      data.push(xs.map((x) => (x === end[0] ? end[1] : x === until ? left : null)));
      series.push({ label: "", stroke, width: 1, dash: [2, 4], points: { show: false }, spanGaps: true, value });
    });
    const note = Number.isFinite(empty) ? "at this rate it ends near iteration " + exact.format(Math.round(empty)) : "";
    shown(host, "budget", "Budget left", note, data, series, { share: true, range: [0, 1], options: { legend: { show: false } } });
    const box = host.drawn.get("budget").box;
    let key = box.querySelector("p");
    if (!key) box.append((key = document.createElement("p")));
    key.className = "note";
    key.textContent = used.map((row) => labels[row.name] + " " + Math.round(row.points[row.points.length - 1][1] * 100) + " %").join(" \u00b7 ");
  }

  async function drawCourse(host) {
    const answer = await fetch(host.dataset.course, { headers: { Accept: "application/json" } });
    if (!answer.ok) return;
    const course = await answer.json();
    if (course.metrics.length || course.budget.some((row) => row.points.length > 1)) host.querySelector("[data-none]")?.remove();
    drawBudget(host, course.budget, course.live);
    course.metrics.forEach((row) => drawMetric(host, row));
  }

  // A live update says that there is something new; the plots follow it at most once in two seconds.
  let drawnAt = "";
  let due = null;
  enhancers.push(() => {
    const host = document.querySelector("[data-course]");
    const head = document.querySelector("[data-head]")?.dataset.head ?? "first";
    if (!host || head === drawnAt || due) return;
    const first = drawnAt === "";
    drawnAt = head;
    due = setTimeout(() => { due = null; drawCourse(host); enhance(document); }, first ? 0 : 2000);
  });
  addEventListener("resize", () => {
    for (const host of all("[data-course]")) host.drawn?.forEach(({ box, plot }) => plot.setSize({ width: Math.max(240, box.clientWidth), height: 200 }));
  });

  // The inbox: j and k move, a approves the open question once, d goes to the reason and the button that denies.
  const rows = () => all("[data-inbox] [data-row]");
  function move(step) {
    const listed = rows();
    if (!listed.length) return;
    const at = listed.findIndex((row) => row.hasAttribute("aria-current"));
    const next = listed[Math.min(listed.length - 1, Math.max(0, at + step))] ?? listed[0];
    next.scrollIntoView({ block: "nearest" });
    next.querySelector("a[data-drawer]").click();
  }
  document.addEventListener("keydown", (event) => {
    if (!document.querySelector("[data-inbox]") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select")) return;
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "a") document.querySelector('[data-question] [data-key="a"]')?.click();
    else if (event.key === "d") {
      const form = document.querySelector("[data-question] form");
      if (!form) return;
      event.preventDefault();
      const reason = form.querySelector("[name=reason]");
      if (document.activeElement === reason || form.dataset.asked) form.querySelector('[data-key="d"]').click();
      else { form.dataset.asked = "1"; form.querySelector('[data-key="d"]').focus(); }
    }
  });

  // Notifications: only after the reader asked for them, for approvals, while this tab is open.
  const wanted = "pursuit-notify";
  let waiting = null;
  enhancers.push(() => {
    const box = document.querySelector("[data-waiting]");
    const button = document.querySelector("[data-notify]");
    if (!box || !button || !("Notification" in window)) return;
    const on = Notification.permission === "granted" && localStorage.getItem(wanted) === "1";
    button.hidden = false;
    button.textContent = on ? "Stop notifying me" : "Notify me here";
    button.setAttribute("aria-pressed", String(on));
    const count = Number(box.dataset.waiting);
    if (on && waiting !== null && count > waiting) new Notification("Pursuit waits for your answer", { body: box.dataset.newest, tag: "pursuit-approval" });
    waiting = count;
    document.title = (count ? "(" + count + ") " : "") + "Approvals \u00b7 Pursuit";
  });
  document.addEventListener("click", async (event) => {
    if (!event.target.closest("[data-notify]")) return;
    const on = Notification.permission === "granted" && localStorage.getItem(wanted) === "1";
    if (on) localStorage.removeItem(wanted);
    else if ((await Notification.requestPermission()) === "granted") localStorage.setItem(wanted, "1");
    enhance(document);
  });

  // The overview of a timeline: calls over the iterations; brushing shows those iterations.
  async function drawOverview(host) {
    const answer = await fetch(host.dataset.overview, { headers: { Accept: "application/json" } });
    if (!answer.ok) return;
    const { calls } = await answer.json();
    if (calls.iterations.length < 2) return;
    host.hidden = false;
    const box = document.createElement("div");
    host.prepend(box);
    const bars = uPlot.paths.bars({ size: [0.9, 40] });
    // Each series is drawn over the one before: first all, then those that did not go well, then the failed ones.
    const failed = calls.failed;
    const other = calls.other.map((one, at) => one + failed[at]);
    const whole = calls.ok.map((one, at) => one + other[at]);
    const series = [["Calls", "--good"], ["Not made", "--warn"], ["Failed", "--bad"]].map(([label, name]) => ({
      label, stroke: style(name), fill: style(name), width: 0, paths: bars, points: { show: false },
    }));
    const brushed = (plot) => {
      if (plot.select.width < 4) return;
      const from = Math.max(1, Math.floor(plot.posToVal(plot.select.left, "x")));
      const to = Math.ceil(plot.posToVal(plot.select.left + plot.select.width, "x")) + calls.size - 1;
      location.href = host.dataset.timeline + "?first=" + from + "&last=" + to;
    };
    const more = { options: { height: 130, legend: { show: false }, cursor: { y: false, drag: { x: true, y: false, setScale: false } }, hooks: { setSelect: [brushed] } } };
    new uPlot(options(box, series, more), [calls.iterations, whole, other, failed], box);
  }
  document.addEventListener("DOMContentLoaded", () => all("[data-overview]").forEach(drawOverview));
})();
