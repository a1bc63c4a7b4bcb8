/* Accessible names, groups, focus and scrolling, which Gradio's markup lacks. */
const PHONE = 768;  // pixels; in a window up to this width, an open side bar covers the whole page
const all = (selector) => [...document.querySelectorAll(selector)];
const words = () => document.querySelector("#words [data-chats]")?.dataset ?? {};
const set = (part, name, value) => {
  if (value !== undefined && part && part.getAttribute(name) !== String(value)) part.setAttribute(name, value);
};

const group_radio = (radio) => {  // radios with the same name are one tab stop
  const group = radio.type === "radio" && radio.closest("#listing, #mode");
  if (group && radio.name !== group.id) radio.name = group.id;
};

const name = () => {
  const said = words();
  set(document.documentElement, "lang", said.lang);
  for (const side of ["chats", "settings"]) {
    const bar = document.getElementById(side), open = bar?.classList.contains("open");
    const handle = bar?.querySelector(".toggle-button"), content = bar?.querySelector(".sidebar-content");
    if (!content) continue;
    content.id ||= `${side}-content`;
    content.inert = !open;
    set(handle, "aria-label", said[side]);
    set(handle, "aria-expanded", open);
    set(handle, "aria-controls", content.id);
    set(content, "role", "region");
    set(content, "aria-label", said[side]);
  }
  for (const group of all("#listing, #mode")) group.querySelectorAll("input[type=radio]").forEach(group_radio);
  for (const list of all("#chat .examples")) {
    set(list, "role", "group");
    set(list, "aria-label", said.examples);
  }
  for (const start of all("#chat .placeholder-content")) set(start, "role", "presentation");
  for (const [role, label] of [["user", said.user], ["bot", said.bot]]) {
    for (const message of all(`#chat [data-testid="${role}"]`)) {
      set(message, "role", "group");
      set(message, "aria-label", label);
    }
  }
  for (const log of all("#chat [role=log]")) {
    set(log, "aria-label", said.log);
    set(log, "tabindex", 0);
  }
  for (const panel of all("#tabs > .tabitem")) {
    if (panel.id) set(panel, "aria-labelledby", `${panel.id}-button`);
    set(panel, "tabindex", panel.id === "insight-tab" ? 0 : -1);
  }
  for (const block of all("#chat pre, #lanes pre, #chat .wide")) set(block, "tabindex", block.scrollWidth > block.clientWidth ? 0 : -1);
  for (const header of all(".toast-header")) {  // a button that holds another
    header.removeAttribute("role");
    header.removeAttribute("tabindex");
  }
  for (const button of all(".toast-close")) set(button, "aria-label", said.close);
  // Gradio's own labels, which are in the language of the browser even where the page is not.
  const [retry, undo] = all("#chat .icon-button-wrapper:not(.top-panel) button");
  const down = document.querySelector("#chat .scroll-down-button-container button");
  for (const [icon, label] of [[retry, said.retry], [undo, said.undo], [down, said.down]]) set(icon, "aria-label", label);
  for (const icon of all("#chat .message-buttons button, #chat .icon-button")) set(icon, "title", icon.ariaLabel ?? undefined);
};

// When the focused element disappears, focus another one: otherwise the next Tab starts at the top of the page.
let focused = null;
const usable = (part) => part?.isConnected && part.getClientRects().length && !part.disabled;
const hand_on = () => {
  const active = document.activeElement;  // an element that is disabled or hidden keeps the focus until the next frame
  if ((active !== document.body && usable(active)) || !focused || usable(focused)) return;
  const here = (selector) => all(selector).find(usable);
  const classes = [...focused.classList].filter((name) => /^(action|turn)-/.test(name)).map((name) => "." + name).join("");
  const next = focused.closest("#settings") || focused.dataset.side === "settings"
    ? here("#settings.open #preset-keep") ?? here("#settings.open #preset-delete") ?? here("#settings .toggle-button")
    : focused.closest("#chats") || focused.dataset.side === "chats"
    ? here("#chats.open #keep") ?? here("#chats.open #delete") ?? here("#chats.open #new")
    : focused.dataset.side && ((classes ? here("#chat button" + classes) : null) ?? here("#prompt textarea") ?? here("#race-prompt textarea"));
  focused = null;
  next?.focus({preventScroll: true});
};
document.addEventListener("focusin", (event) => {
  focused = event.target;
  const side = focused.closest("#chats, #chat, #composer, #race, #settings");
  if (side) focused.dataset.side = side.id;
});
document.addEventListener("pointerdown", (event) => {
  if (!event.target.closest("button, input, textarea, label, a, [tabindex]")) focused = null;  // the user meant to leave it
});

// Show that a text was copied on the button that was clicked, and focus the composer for an edit.
const COPIED_MS = 1500;
let copying = null, editing = false;
document.addEventListener("click", (event) => {
  const button = event.target.closest("#chat button.message-button");
  if (!button) return;
  editing = button.matches(".action-edit");
  if (button.matches(".action-copy_prompt, .action-copy_answer")) copying = button;
});
document.addEventListener("copied", () => {
  const [button, label] = [copying, copying?.textContent];
  if (!button?.isConnected || button.dataset.copied) return;
  button.dataset.copied = "yes";
  button.setAttribute("aria-live", "polite");
  button.textContent = words().copied;
  setTimeout(() => {
    button.textContent = label;
    delete button.dataset.copied;
  }, COPIED_MS);
});
const edit = () => {
  if (!editing || !document.querySelector("#entry-notes .editing")) return;
  editing = false;
  document.querySelector("#prompt textarea").focus();
};

// Scroll along with a growing conversation, until the user scrolls up, and again after scrolling to its end.
let follows = true, rows = 0, log = null;
const rest = () => log.scrollHeight - log.clientHeight - log.scrollTop;
const follow = () => {
  const now = document.querySelector("#chat [role=log]");
  if (now && now !== log) {
    log = now;
    let last = log.scrollTop;
    log.addEventListener("scroll", () => {
      if (rest() < 8) follows = true;
      else if (log.scrollTop < last) follows = false;
      last = log.scrollTop;
    });
    log.addEventListener("wheel", (event) => { if (event.deltaY < 0) follows = false; }, {passive: true});
  }
  if (!log) return;
  const count = log.querySelectorAll(".user-row").length;
  if (count !== rows) [follows, rows] = [true, count];
  if (follows && count && rest() > 0) log.scrollTop = log.scrollHeight;
};

// A window that is too low for the composer and the conversation scrolls as a whole.
const low = matchMedia("(max-height: 660px)");
const measure = () => document.documentElement.toggleAttribute("data-low", low.matches);
low.addEventListener("change", measure);
measure();

// On a phone, close the side bar after a choice, since it covers the conversation.
const shut = () => {
  if (innerWidth <= PHONE) document.querySelector("#chats.open .toggle-button")?.click();
};
document.addEventListener("change", (event) => {
  if (event.target.closest("#listing")) shut();
});
document.addEventListener("click", (event) => {
  if (event.target.closest("#new")) shut();
});

// What is typed on the way to another conversation would be lost, so the prompt is locked until the page is there.
const LOCKED_MS = 5000;
let unlocking = null;
const lock = (locked) => {
  clearTimeout(unlocking);
  const prompt = document.querySelector("#prompt textarea");
  if (prompt) prompt.readOnly = locked;
  if (locked) unlocking = setTimeout(() => lock(false), LOCKED_MS);
};
document.addEventListener("click", (event) => {
  if (event.target.closest("#new")) lock(true);
});
document.addEventListener("change", (event) => {
  if (event.target.closest("#listing")) lock(true);
});
document.addEventListener("turned", () => lock(false));

let due = false;
const mend = () => {
  due = false;
  name();
  hand_on();
  edit();
  follow();
};
new MutationObserver(() => {
  if (due) return;
  due = true;
  requestAnimationFrame(mend);
}).observe(document.body, {subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: ["class", "disabled"]});
// Gradio renames a radio when it is chosen, and the next key can come before the next frame.
new MutationObserver((records) => records.forEach(({target}) => group_radio(target)))
  .observe(document.body, {subtree: true, attributes: true, attributeFilter: ["name"]});
mend();
