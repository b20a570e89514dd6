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
    opener?.focus();
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") closeDrawer();
  });
})();
