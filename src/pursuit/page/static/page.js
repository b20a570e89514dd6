// What the page needs beyond htmx: times in the reader's zone, newer plots, the drawer, keys, and notifications.
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

  // A live update says that there is something new; the plots follow it at most once in two seconds.
  let drawnAt = null;
  let due = null;
  enhancers.push(() => {
    const host = document.querySelector("[data-plots]");
    const head = document.querySelector("[data-head]")?.dataset.head;
    if (!host || head === drawnAt || due) return;
    const first = drawnAt === null; // the server has just drawn them
    drawnAt = head;
    if (first) return;
    due = setTimeout(() => { due = null; htmx.ajax("GET", host.dataset.plots, { target: host, swap: "innerHTML" }); }, 2000);
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
})();
