/** Puts the page together: one sandbox, two people, two devices each, and everybody else. */

import { Device } from "./device.js";
import { patch } from "./dom.js";
import { guide } from "./guide.js";
import { label, startSession } from "./session.js";
import { Store } from "./store.js";
import { device as deviceView } from "./view.js";
import { Wire } from "./wire.js";
import { Writers, writingForm } from "./writer.js";

const REFRESH_AGES = 20_000;
const OVER = "This sandbox is over: its people live for an hour. Press “Fresh start” for another.";

const $ = (selector) => document.querySelector(selector);
const say = (text) => ($("#said").textContent = text);

function trouble(text) {
  $("#trouble").hidden = false;
  $("#trouble").textContent = text;
}

async function start() {
  const session = await startSession();
  const store = new Store(session.messages);
  const wire = new Wire($("#wire"));
  const page = { session, store, WebSocket: (device) => wire.socketOf(device) };
  const devices = ["Alice", "Bob"].flatMap((name) =>
    ["phone", "laptop"].map((kind) => new Device(session.person(name), kind, page, draw)),
  );
  for (const device of devices) {
    device.root = $(`[data-device="${device.id}"]`);
    device.tab = $(`[data-tab="${device.id}"]`);
    device.shown = () => show(device.id);
    device.tab.onclick = device.shown;
    wire.introduce(device, $("#wire select"));
    draw(device);
  }
  const writers = new Writers(session, store);
  writingForm($("#writer"), session, store, writers, say);
  guide($("#guide"), session, devices, writers, say);
  setInterval(() => devices.forEach(draw), REFRESH_AGES);
  await Promise.all(devices.map((device) => device.connect()));
  document.body.dataset.ready = "";
}

// ------------------------------------------------------------ drawing

const due = new Set();

/** Draw a device before the next frame, however often it changes until then. */
function draw(device) {
  if (!due.size) requestAnimationFrame(drawDue);
  due.add(device);
}

function drawDue() {
  const devices = [...due];
  due.clear();
  for (const device of devices) drawNow(device);
}

function drawNow(device) {
  const { root } = device;
  const held = root.contains(document.activeElement);
  const stuck = atEnd(root.querySelector("[data-scroll]"));
  patch(root, deviceView(device));
  scroll(device, stuck);
  if (held) focus(device);
  device.focusOn = null;
  drawTab(device);
  if (device.rs.state === "closed") trouble(OVER);
}

function drawTab(device) {
  const { unread } = device.rs.totals;
  device.tab.querySelector(".pill").textContent = label(unread, device.cap);
  device.tab.querySelector(".pill").hidden = !unread;
}

/** Keep the focus with the person who acts: into what just opened, or back to where it came from. */
function focus(device) {
  const { root, focusOn, view } = device;
  const within = focusOn === "menu" ? " [role=menuitem]" : "";
  const target = focusOn && root.querySelector(`[data-focus="${CSS.escape(focusOn)}"]${within}`);
  if (target) target.focus({ preventScroll: focusOn !== "menu" });
  else if (focusOn || !root.contains(document.activeElement)) heading(root, view.name)?.focus({ preventScroll: true });
}

const heading = (root, view) => root.querySelector(`h4[data-focus="${view}"]`);

// ------------------------------------------------------------ scrolling

function atEnd(list) {
  return list ? { place: list.dataset.scroll, end: list.scrollHeight - list.scrollTop - list.clientHeight < 40 } : null;
}

/** A channel opens at its red line, or else at its end; whoever is at the end stays there. */
function scroll(device, before) {
  const list = device.root.querySelector("[data-scroll]");
  if (!list) return;
  const line = device.follow === "line" && list.querySelector(".line");
  if (line) list.scrollTop = line.offsetTop - list.clientHeight / 4;
  else if (device.follow || before?.place !== list.dataset.scroll || before.end) list.scrollTop = list.scrollHeight;
  device.follow = null;
}

// ------------------------------------------------------------ narrow screens

/** On a narrow screen one device is shown at a time. */
function show(id) {
  for (const device of document.querySelectorAll("[data-device]")) {
    device.classList.toggle("shown", device.dataset.device === id);
  }
  for (const tab of document.querySelectorAll("[data-tab]")) {
    tab.setAttribute("aria-pressed", String(tab.dataset.tab === id));
  }
}

$("#fresh").onclick = () => location.reload();
start().catch((error) => {
  trouble(`This page could not start. ${error.detail ?? error.message}`);
});
