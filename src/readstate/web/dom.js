/**
 * Views as plain descriptions, and the one function that makes a page look like them.
 *
 * `patch` keeps what is already there, found by key or by place, so that focus, scrolling and half-written
 * texts survive. Texts are only ever set as texts: nothing that somebody wrote can become markup.
 */

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "hidden"]);

/** An element as it should be. `props.key` finds it again among its siblings. */
export function h(tag, props, ...children) {
  const { key, ...rest } = props ?? {};
  return { tag, key, props: rest, children: flat(children) };
}

/** A button that does something; it sends no form. */
export function button(props, ...children) {
  return h("button", { type: "button", ...props }, ...children);
}

function flat(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Make the children of `parent` what `views` say. */
export function patch(parent, views) {
  const wanted = flat([views]);
  const old = [...parent.childNodes];
  const byKey = new Map(old.filter((node) => node.view?.key !== undefined).map((node) => [node.view.key, node]));
  const loose = old.filter((node) => node.view?.key === undefined);
  const kept = new Set();
  const nodes = wanted.map((view) => {
    const match = view.key === undefined ? loose.find((node) => fits(node, view)) : byKey.get(view.key);
    const node = match && !kept.has(match) && fits(match, view) ? match : create(view, parent);
    if (match === node && view.key === undefined) loose.splice(loose.indexOf(node), 1);
    kept.add(node);
    update(node, view);
    return node;
  });
  for (const node of old) if (!kept.has(node)) node.remove();
  nodes.forEach((node, place) => {
    if (parent.childNodes[place] !== node) parent.insertBefore(node, parent.childNodes[place] ?? null);
  });
}

function fits(node, view) {
  if (typeof view !== "object") return node.nodeType === Node.TEXT_NODE;
  return node.view?.tag === view.tag && node.view.key === view.key;
}

function create(view, parent) {
  if (typeof view !== "object") return document.createTextNode("");
  const inSvg = view.tag === "svg" || parent.namespaceURI === SVG;
  const node = inSvg ? document.createElementNS(SVG, view.tag) : document.createElement(view.tag);
  node.view = { tag: view.tag, key: view.key, props: {} };
  return node;
}

function update(node, view) {
  if (typeof view !== "object") {
    if (node.data !== String(view)) node.data = String(view);
    return;
  }
  const before = node.view.props;
  for (const name of Object.keys(before)) if (!(name in view.props)) set(node, name, null);
  // Children first: a select takes a value only when it has the option.
  node.view = { tag: view.tag, key: view.key, props: view.props };
  patch(node, view.children);
  for (const [name, value] of Object.entries(view.props)) {
    if (before[name] !== value || PROPERTIES.has(name)) set(node, name, value);
  }
}

function set(node, name, value) {
  if (name.startsWith("on")) node[name.toLowerCase()] = value;
  else if (PROPERTIES.has(name)) {
    const wanted = value ?? (name === "value" ? "" : false);
    if (node[name] !== wanted) node[name] = wanted;
  } else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : String(value));
}

/** Arrow keys, Home and End move the focus among the elements with `data-rove` inside the one that listens. */
export function roving(event) {
  const forward = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  const edge = { Home: 0, End: -1 }[event.key];
  if ((forward === undefined && edge === undefined) || event.target.matches("input, select, textarea")) return;
  const items = [...event.currentTarget.querySelectorAll("[data-rove]")];
  const now = items.indexOf(event.target.closest("[data-rove]"));
  if (now < 0) return;
  const next = edge === undefined ? items[now + forward] : items.at(edge);
  event.preventDefault();
  if (!next) return;
  for (const item of items) item.tabIndex = item === next ? 0 : -1;
  next.focus();
}
