// Keeps the page of a run as new as the server's. Without it the page is complete, and loads itself
// again every ten seconds.
"use strict";

(() => {
  const status = document.getElementById("link");
  const waiting = new Map(); // parts that came while the reader had a part of them selected

  const say = (text, cut) => {
    if (status.textContent !== text) status.textContent = text;
    status.classList.toggle("cut", Boolean(cut));
  };

  const isSelected = (section) => {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && selection.containsNode(section, true);
  };

  // Put the new HTML in place, and leave open what was open and the focus where it was.
  const replace = (name, html) => {
    const old = document.querySelector(`[data-live="${name}"]`);
    if (!old) return;
    if (isSelected(old)) {
      waiting.set(name, html);
      return;
    }
    const template = document.createElement("template");
    template.innerHTML = html;
    const made = template.content.querySelector("[data-live]");
    if (!made) return;
    const focused = document.activeElement;
    const places = [...old.querySelectorAll("a, summary, input, button, pre")];
    const at = old.contains(focused) ? places.indexOf(focused) : -1;
    const key = at >= 0 ? focused.id || focused.getAttribute("href") : null;
    for (const one of old.querySelectorAll("details[open][id]")) {
      const again = made.querySelector(`#${CSS.escape(one.id)}`);
      if (again) again.open = true;
    }
    const typed = new Map([...old.querySelectorAll("input[id]")].map((one) => [one.id, one.value]));
    old.replaceWith(made);
    for (const [id, value] of typed) {
      const again = document.getElementById(id);
      if (again) again.value = value;
    }
    if (at >= 0) {
      const now = [...made.querySelectorAll("a, summary, input, button, pre")];
      const same = now.find((one) => key && (one.id === key || one.getAttribute("href") === key));
      (same || now[Math.min(at, now.length - 1)])?.focus({ preventScroll: true });
    }
  };

  // One part in one task, so that scrolling and typing never wait for all of them.
  const queue = new Map();
  const work = () => {
    const next = queue.entries().next();
    if (next.done) return;
    const [name, html] = next.value;
    queue.delete(name);
    replace(name, html);
    if (queue.size) setTimeout(work, 0);
  };
  const later = (name, html) => {
    if (!queue.size) setTimeout(work, 0);
    queue.set(name, html);
  };
  document.addEventListener("selectionchange", () => {
    for (const [name, html] of [...waiting]) {
      const section = document.querySelector(`[data-live="${name}"]`);
      if (section && isSelected(section)) continue;
      waiting.delete(name);
      later(name, html);
    }
  });

  // A browser opens six connections to a server at most, and each stream holds one. So a tab that
  // nobody sees holds none, and asks for its title now and then.
  const follow = (url) => {
    let source = null;
    let isOver = false;
    const open = () => {
      if (source || isOver || document.hidden) return;
      const mine = new EventSource(url);
      source = mine;
      mine.addEventListener("open", () => say("live"));
      mine.addEventListener("part", (event) => {
        const part = JSON.parse(event.data);
        say("live");
        later(part.name, part.html);
      });
      mine.addEventListener("title", (event) => {
        document.title = JSON.parse(event.data);
      });
      mine.addEventListener("trouble", (event) => say(JSON.parse(event.data).error, true));
      mine.addEventListener("over", () => {
        isOver = true;
        close();
        say("the run is over");
      });
      mine.addEventListener("error", () => {
        say("not connected: what you see may be old", true);
        if (mine.readyState !== EventSource.CLOSED || source !== mine) return;
        source = null;
        setTimeout(open, 10000);
      });
    };
    const close = () => {
      if (source) source.close();
      source = null;
    };
    const retitle = async () => {
      if (!document.hidden || isOver) return;
      try {
        const text = await (await fetch(location.href)).text();
        const title = new DOMParser().parseFromString(text, "text/html").title;
        if (title) document.title = title;
      } catch {
        // the next look may reach the server
      }
    };
    document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
    setInterval(retitle, 30000);
    open();
  };

  const again = async (seconds) => {
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (!answer.ok) throw new Error(answer.status);
      const made = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const one of made.querySelectorAll("[data-live]")) {
        const old = document.querySelector(`[data-live="${one.dataset.live}"]`);
        if (old && old.outerHTML !== one.outerHTML) later(one.dataset.live, one.outerHTML);
      }
      say("");
    } catch {
      say("not connected: what you see may be old", true);
    }
    setTimeout(again, seconds * 1000, seconds);
  };

  const { events, again: seconds } = document.body.dataset;
  if (events) follow(events);
  if (seconds) setTimeout(again, seconds * 1000, Number(seconds));
})();
