/** What goes over the wire: the frames of all devices as they pass, the newest first, a bounded number of them. */

const KEPT = 300;
const QUIET = new Set(["ping", "pong"]);

export class Wire {
  #list;
  #last;
  #rows = [];
  #shown = "all";

  constructor(root) {
    this.#list = root.querySelector("ol");
    this.#last = root.querySelector(".last");
    root.querySelector("select").onchange = (event) => this.#show(event.target.value);
    root.querySelector(".clear").onclick = () => this.#clear();
  }

  /** Offer a device in the filter. */
  introduce(device, select) {
    const option = document.createElement("option");
    option.value = device.id;
    option.textContent = device.name;
    select.append(option);
  }

  /** A kind of WebSocket that shows here whatever a device sends and gets. */
  socketOf(device) {
    const show = (up, data) => this.#add(device, up, data);
    return class extends WebSocket {
      constructor(...given) {
        super(...given);
        this.addEventListener("message", (event) => show(false, event.data));
        this.addEventListener("close", (event) => show(false, JSON.stringify({ type: "closed", code: event.code })));
      }

      send(data) {
        show(true, data);
        super.send(data);
      }
    };
  }

  #add(device, up, data) {
    const frame = JSON.parse(data);
    if (QUIET.has(frame.type)) return;
    // A token on the screen could end up in a screenshot.
    const shown = JSON.stringify(frame, (name, value) => (name === "token" ? "…" : value));
    const row = rowOf(device, up, frame.type, shown);
    row.hidden = this.#shown !== "all" && this.#shown !== device.id;
    this.#rows.unshift(row);
    this.#list.prepend(row);
    if (this.#rows.length > KEPT) this.#rows.pop().remove();
    this.#last.textContent = `${device.name} ${up ? "sent" : "got"} ${frame.type}`;
  }

  #show(device) {
    this.#shown = device;
    for (const row of this.#rows) row.hidden = device !== "all" && row.dataset.of !== device;
  }

  #clear() {
    this.#rows = [];
    this.#list.replaceChildren();
  }
}

function rowOf(device, up, type, json) {
  const row = document.createElement("li");
  row.dataset.of = device.id;
  row.className = up ? "up" : "down";
  const parts = [
    ["time", new Date().toLocaleTimeString("en-GB")],
    ["who", device.name],
    ["way", up ? "→ sent" : "← got"],
    ["type", type],
    ["json", json],
  ];
  for (const [name, text] of parts) {
    const part = document.createElement("span");
    part.className = name;
    part.textContent = text;
    row.append(part);
  }
  return row;
}
