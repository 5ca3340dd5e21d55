// What the pages do: the menu of a phone, light or dark, copying code, the table of contents, and search.
"use strict";
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

$(".theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", document.documentElement.dataset.theme); } catch { /* a reader who keeps nothing */ }
});

const menu = $(".menu");
if (menu) {
  const toggle = open => {
    document.body.classList.toggle("menu-open", open);
    menu.setAttribute("aria-expanded", open);
  };
  menu.addEventListener("click", () => toggle(!document.body.classList.contains("menu-open")));
  document.addEventListener("click", event => {
    if (!event.target.closest(".pages, .menu")) toggle(false);
  });
}
$(".pages a[aria-current]")?.scrollIntoView({ block: "nearest" });
scrollTo(0, scrollY);

// Prompts and output of a recorded session are not what one wants to paste.
const commands = text => /^\$ /m.test(text)
  ? text.split("\n").reduce(({ lines, open }, line) => {
      const command = line.startsWith("$ ");
      if (command || open) lines.push(command ? line.slice(2) : line);
      return { lines, open: (command || open) && (/\\$/.test(line) || quotes(lines) % 2 === 1) };
    }, { lines: [], open: false }).lines.join("\n") + "\n"
  : text;
const quotes = lines => (lines.join("\n").match(/'/g) || []).length;

for (const button of $$(".copy")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(commands($("pre", button.parentElement).textContent));
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1200);
  });
}

const contents = new Map($$(".toc a").map(a => [decodeURIComponent(a.hash.slice(1)), a]));
if (contents.size) {
  const headings = $$("article h2[id], article h3[id]").filter(h => contents.has(h.id));
  const mark = () => {
    const last = headings.filter(h => h.getBoundingClientRect().top < 120).pop() || headings[0];
    for (const [id, a] of contents) a.toggleAttribute("aria-current", id === last?.id);
  };
  addEventListener("scroll", mark, { passive: true });
  mark();
}

// Search: every word of the question has to be in a page; where it is, decides the order.
const input = $(".search input"), found = $("#found"), indexURL = $("#search-index").href;
let index;
const load = async () => index ??= fetch(indexURL).then(answer => answer.json());
const score = (entry, words) => {
  let sum = 0;
  for (const word of words) {
    const title = entry.lt.indexOf(word), other = entry.ld.includes(word), body = entry.lb.indexOf(word);
    if (title < 0 && !other && body < 0) return 0;
    sum += title === 0 ? 12 : title > 0 ? 8 : other ? 4 : 1;
  }
  return sum + (entry.d ? 1 : 0);
};
const escape = text => text.replace(/[&<>"]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const excerpt = (entry, words) => {
  const at = Math.max(...words.map(word => entry.lb.indexOf(word)));
  if (entry.d && at < 0 || !entry.b) return entry.d;
  return (at > 40 ? "…" : "") + entry.b.slice(Math.max(0, at - 40), at + 90) + "…";
};
const highlight = (text, words) => {
  const wanted = words.map(word => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return escape(text).replace(new RegExp(wanted.join("|"), "gi"), "<mark>$&</mark>");
};
const search = async () => {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean).slice(0, 8);
  if (!words.length) { found.hidden = true; return; }
  const entries = await load();
  for (const entry of entries) {
    entry.lt ??= entry.t.toLowerCase();
    entry.ld ??= (entry.d + " " + entry.s).toLowerCase();
    entry.lb ??= entry.b.toLowerCase();
  }
  const best = entries.map(entry => [score(entry, words), entry]).filter(([s]) => s > 0).sort((a, b) => b[0] - a[0]).slice(0, 12);
  const root = new URL(".", indexURL).href;
  found.innerHTML = best.length
    ? best.map(([, entry]) => `<a href="${escape(new URL(entry.u.replace(/^\//, ""), root).href)}"><small>${escape(entry.s)}</small><strong>${highlight(entry.t, words)}</strong><span>${highlight(excerpt(entry, words), words)}</span></a>`).join("")
    : "<p>Nothing has all of these words.</p>";
  found.hidden = false;
};
input.addEventListener("focus", load);
input.addEventListener("input", search);
document.addEventListener("keydown", event => {
  if (event.key === "/" && !/INPUT|TEXTAREA/.test(document.activeElement.tagName)) { event.preventDefault(); input.focus(); }
  if (event.key === "Escape") { found.hidden = true; input.blur(); document.body.classList.remove("menu-open"); }
  if (found.hidden || !/^Arrow(Up|Down)$|^Enter$/.test(event.key)) return;
  const links = $$("a", found), at = links.indexOf(document.activeElement);
  if (event.key === "Enter") { if (at < 0) links[0]?.click(); return; }
  event.preventDefault();
  (links[at + (event.key === "ArrowDown" ? 1 : -1)] || input).focus();
});
document.addEventListener("click", event => { if (!event.target.closest(".search")) found.hidden = true; });
