
"use strict";

// The document is this page's neighbour, and the API is where the document is: so any mount point will do.
const BASE = new URL(".", window.location.href);
const MOST_SHOWN = 200_000;
const $ = (id) => document.getElementById(id);

// ---------------------------------------------------------------- making elements

function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name, value);
    } else if (value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Prose with `code` and **bold** in it. */
function prose(text) {
  return (text || "").split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) => {
    if (part.startsWith("`")) return h("code", {}, part.slice(1, -1));
    if (part.startsWith("**")) return h("strong", {}, part.slice(2, -2));
    return part;
  });
}

function paragraphs(text) {
  return (text || "").split("\n\n").filter(Boolean).map((part) => h("p", {}, prose(part)));
}

function table(caption, heads, rows) {
  const head = h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name)));
  const body = rows.map(([first, ...rest]) =>
    h("tr", {}, h("th", { scope: "row" }, first), rest.map((cell) => h("td", {}, cell))));
  const whole = h("table", { "aria-label": caption }, h("thead", {}, head), h("tbody", {}, body));
  return h("div", { class: "table", tabindex: "0", role: "region", "aria-label": caption }, whole);
}

/** JSON with its names, texts and other values told apart by colour. */
function pretty(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  const parts = text.split(/("(?:[^"\\]|\\.)*"(?:\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?)/);
  return h("pre", { tabindex: "0" }, parts.map((part, place) => {
    if (place % 2 === 0) return part;
    const kind = part.endsWith(":") ? "key" : part.startsWith('"') ? "text" : "other";
    return h("span", { class: `json-${kind}` }, part);
  }));
}

// ---------------------------------------------------------------- schemas

let api;

function resolve(thing) {
  if (!thing || !thing.$ref) return thing;
  return thing.$ref.slice(2).split("/").reduce((place, name) => place[name], api);
}

/** A schema in a few words, with links to the schemas that it names. */
function typeOf(schema) {
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return [h("a", { href: `#schema-${name}` }, name)];
  }
  if (schema["x-line"]) return ["lines, each ", ...typeOf(schema["x-line"])];
  const choices = schema.anyOf || schema.oneOf;
  if (choices) return joined(choices.map(typeOf), " or ");
  if (schema.enum) return joined(schema.enum.map((value) => [h("code", {}, JSON.stringify(value))]), " or ");
  if (schema.const !== undefined) return [h("code", {}, JSON.stringify(schema.const))];
  if (schema.prefixItems) return ["(", ...joined(schema.prefixItems.map(typeOf), ", "), ")"];
  if (schema.type === "array") return ["list of ", ...typeOf(schema.items || {})];
  if (schema.type === "object" && schema.additionalProperties) {
    return ["map to ", ...typeOf(schema.additionalProperties)];
  }
  return [schema.type || "anything", ...(schema.format ? [` (${schema.format})`] : [])];
}

function joined(parts, between) {
  return parts.flatMap((part, place) => (place ? [between, ...part] : part));
}

function limitsOf(schema) {
  const words = { minimum: "from", maximum: "to", minLength: "length from", maxLength: "length to", maxItems: "items to" };
  const told = Object.entries(words).filter(([name]) => schema[name] !== undefined)
    .map(([name, word]) => `${word} ${schema[name]}`);
  if (schema.default !== undefined && schema.default !== null) told.push(`default ${JSON.stringify(schema.default)}`);
  return told.length ? h("div", { class: "soft" }, told.join(", ")) : null;
}

function fieldName(name, needed) {
  return [h("code", {}, name), needed ? h("span", { class: "needed" }, " required") : ""];
}

function schemaArticle(name, schema) {
  const rows = Object.entries(schema.properties || {}).map(([field, type]) =>
    [fieldName(field, (schema.required || []).includes(field)), [typeOf(type), limitsOf(type)], prose(type.description)]);
  const examples = schema.examples || [];
  return h("article", { id: `schema-${name}`, "aria-labelledby": `schema-${name}-title`, "data-words": words(name, schema) },
    h("h3", { id: `schema-${name}-title` }, name),
    paragraphs(schema.description),
    rows.length ? table(`Fields of ${name}`, ["Field", "Type", "Meaning"], rows) : h("p", {}, typeOf(schema)),
    examples.length ? [h("h4", {}, "Example"), pretty(examples[0])] : null);
}

// ---------------------------------------------------------------- operations

function words(...things) {
  return things.map((thing) => (typeof thing === "string" ? thing : JSON.stringify(thing))).join(" ").toLowerCase();
}

function badge(method) {
  return h("span", { class: `method ${method}` }, method.toUpperCase());
}

function contentOf(part) {
  const [media, content] = Object.entries(part.content || {})[0] || [];
  const given = content && Object.values(content.examples || {}).map(resolve);
  const examples = (given && given.map((one) => one.value)) || [];
  if (content && content.example !== undefined) examples.push(content.example);
  return { media, schema: (content || {}).schema || {}, examples };
}

function parametersOf(operation) {
  if (!operation.parameters.length) return null;
  const rows = operation.parameters.map((parameter) => [
    fieldName(parameter.name, parameter.required), parameter.in,
    [typeOf(parameter.schema), limitsOf(parameter.schema)], prose(parameter.description),
  ]);
  return [h("h4", {}, "Parameters"), table("Parameters", ["Name", "In", "Type", "Meaning"], rows)];
}

function bodyOf(operation) {
  if (!operation.requestBody) return null;
  const { media, schema, examples } = contentOf(operation.requestBody);
  const needed = operation.requestBody.required ? "" : ", may be left out";
  return [h("h4", {}, "Body"), h("p", {}, typeOf(schema), ` (${media}${needed})`), examples.map(pretty)];
}

function answersOf(operation) {
  const entries = Object.entries(operation.responses).map(([status, answer]) => [status, resolve(answer)]);
  const good = entries.filter(([status]) => status < 400).map(([status, answer]) => {
    const { media, schema, examples } = contentOf(answer);
    return [h("h4", {}, `Answer ${status}`), h("p", {}, prose(answer.description), " ", typeOf(schema), ` (${media})`),
      examples.map(pretty)];
  });
  const rows = entries.filter(([status]) => status >= 400).flatMap(([status, answer]) =>
    Object.entries(contentOf(answer).media ? answer.content["application/problem+json"].examples : {})
      .map(([code, example]) => [h("code", {}, status), h("a", { href: `#error-${code}` }, code), resolve(example).summary]));
  const errors = rows.length
    ? h("details", {}, h("summary", {}, `Errors (${rows.length})`), table("Errors", ["Status", "Code", "Meaning"], rows))
    : null;
  return [good, errors];
}

function whoOf(operation) {
  const who = operation.security.map((scheme) => ({ serviceKey: "a service key", userToken: "a user token" })[Object.keys(scheme)[0]]);
  return h("p", { class: "soft" }, who.length ? `With ${who.join(" or ")}.` : "Open to anyone.");
}

function operationArticle(path, method, operation) {
  const id = `op-${operation.operationId}`;
  const attempt = h("details", {}, h("summary", {}, "Try it"));
  attempt.addEventListener("toggle", () => attempt.append(tryIt(id, path, method, operation)), { once: true });
  return h("article", { id, "aria-labelledby": `${id}-title`, "data-words": words(path, method, operation) },
    h("h3", { id: `${id}-title` }, operation.summary),
    h("p", { class: "route" }, badge(method), path),
    paragraphs(operation.description), whoOf(operation),
    parametersOf(operation), bodyOf(operation), answersOf(operation), attempt);
}

// ---------------------------------------------------------------- trying

function inputFor(id, parameter) {
  const { schema, name } = parameter;
  const choices = schema.enum || (schema.type === "boolean" ? ["true", "false"] : null);
  if (choices) {
    return h("select", { id, name }, h("option", { value: "" }, "not given"), choices.map((one) => h("option", { value: one }, one)));
  }
  const number = schema.type === "integer";
  return h("input", {
    id, name, type: number ? "number" : "text", min: schema.minimum, max: schema.maximum, required: parameter.required,
    value: parameter.example, autocomplete: "off", spellcheck: "false", autocapitalize: "off",
  });
}

function tryIt(id, path, method, operation) {
  const inputs = new Map();
  const fields = operation.parameters.map((parameter) => {
    const input = inputFor(`${id}-${parameter.name}`, parameter);
    inputs.set(parameter, input);
    return h("div", {}, h("label", { for: input.id }, `${parameter.name} (${parameter.in})`), input);
  });
  const body = operation.requestBody && contentOf(operation.requestBody);
  const area = body && h("textarea", { id: `${id}-body`, spellcheck: "false", autocapitalize: "off" });
  if (area) area.value = typeof body.examples[0] === "string" ? body.examples[0] : JSON.stringify(body.examples[0] || {}, null, 2);
  const button = h("button", { type: "submit" }, "Send");
  const status = h("p", { role: "status" });
  const answer = h("div");
  const send = async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      const request = requestOf(path, method, inputs, area && area.value, body && body.media);
      const [outcome, ...details] = await ask(request);
      status.replaceChildren(outcome);
      answer.replaceChildren(...details);
    } finally {
      button.disabled = false;
    }
  };
  return h("form", { submit: send, autocomplete: "off", "aria-label": `Try ${operation.summary}` },
    h("div", { class: "fields" }, fields),
    area ? h("div", { class: "field" }, h("label", { for: area.id }, `Body (${body.media})`), area) : null,
    h("p", {}, button), h("div", { class: "answer" }, status, answer));
}

function requestOf(path, method, inputs, body, media) {
  const query = new URLSearchParams();
  let filled = path.slice(1);
  for (const [parameter, input] of inputs) {
    if (parameter.in === "path") filled = filled.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
    else if (input.value !== "") query.append(parameter.name, input.value);
  }
  const url = new URL(filled, BASE);
  url.search = query;
  const headers = {};
  const key = $("key").value.trim();
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = media;
  return { url, method: method.toUpperCase(), headers, body: body || undefined };
}

/** The same request for a shell; the key stays out of it. */
function curl({ url, method, headers, body }) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const parts = [`curl -X ${method} ${quoted(url.href)}`];
  if (headers.Authorization) parts.push('-H "Authorization: Bearer $KEY"');
  if (headers["Content-Type"]) parts.push(`-H ${quoted(`Content-Type: ${headers["Content-Type"]}`)}`);
  if (body) parts.push(`--data-binary ${quoted(body)}`);
  return parts.join(" \\\n  ");
}

async function ask(request) {
  const shell = h("details", {}, h("summary", {}, "As a command"), h("pre", { tabindex: "0" }, curl(request)));
  const { url, ...options } = request;
  const started = performance.now();
  try {
    const answer = await fetch(url, { ...options, credentials: "omit", cache: "no-store", redirect: "error" });
    const text = await answer.text();
    const took = Math.round(performance.now() - started);
    const status = h("span", {}, h("span", { class: answer.ok ? "good" : "bad" }, `${answer.status} ${answer.statusText}`), ` in ${took} ms`);
    return [status, shown(text, answer.headers.get("content-type") || ""), shell];
  } catch (error) {
    return [h("span", { class: "bad" }, `There was no answer: ${error.message}`), shell];
  }
}

function shown(text, media) {
  const cut = text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}\n… ${text.length - MOST_SHOWN} more characters` : text;
  if (cut !== text || !/^application\/(problem\+)?json/.test(media)) return h("pre", { tabindex: "0" }, cut || "(no body)");
  try {
    return pretty(JSON.parse(text));
  } catch {
    return h("pre", { tabindex: "0" }, text);
  }
}

// ---------------------------------------------------------------- the page

function indexed(title, id, links) {
  return h("section", { "aria-labelledby": id }, h("h2", { id }, title), h("ul", {}, links));
}

function link(target, searched, ...children) {
  return h("li", { "data-words": searched, "data-for": target }, h("a", { href: `#${target}` }, children));
}

function draw() {
  $("version").textContent = api.info.version;
  $("about").replaceChildren(...paragraphs(api.info.description));
  const all = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method, operation })));
  for (const tag of api.tags) {
    const ours = all.filter(({ operation }) => operation.tags.includes(tag.name));
    const articles = ours.map(({ path, method, operation }) => operationArticle(path, method, operation));
    $("operations").append(h("section", { "aria-labelledby": `tag-${tag.name}` },
      h("h2", { id: `tag-${tag.name}` }, tag.name), paragraphs(tag.description), articles));
    $("index").append(indexed(tag.name, `index-${tag.name}`, ours.map(({ method, operation }, place) =>
      link(articles[place].id, articles[place].dataset.words, badge(method), operation.summary))));
  }
  drawErrors();
  drawSchemas();
}

function drawErrors() {
  const errors = Object.entries(api.components.examples).map(([code, { summary, value }]) => [code, summary, value]);
  const rows = errors.map(([code, summary, value]) =>
    [h("span", { id: `error-${code}` }, h("code", {}, code)), String(value.status), value.retry ? "yes" : "no", summary]);
  $("errors").append(h("p", {}, "Every error is a ", h("a", { href: "#schema-Problem" }, "Problem"), "."),
    table("Errors", ["Code", "Status", "Retry", "Meaning"], rows));
  $("errors").hidden = false;
}

function drawSchemas() {
  const articles = Object.entries(api.components.schemas).sort().map(([name, schema]) => schemaArticle(name, schema));
  $("schemas").append(...articles);
  $("schemas").hidden = false;
  $("index").append(indexed("More", "index-more", [link("errors", "errors", "Errors"), link("schemas", "schemas", "Schemas")]));
}

function search() {
  const wanted = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (element) => wanted.every((word) => element.dataset.words.includes(word));
  for (const element of document.querySelectorAll("[data-words]")) element.hidden = !fits(element);
  for (const section of document.querySelectorAll("#operations > section, #index > section")) {
    section.hidden = !section.querySelector("[data-words]:not([hidden])");
  }
  const found = document.querySelectorAll("#operations article:not([hidden])").length;
  $("found").textContent = wanted.length ? `${found} ${found === 1 ? "operation" : "operations"}` : "";
}

/** Whatever a link leads to must be visible, whatever was searched for. */
function reveal() {
  const target = $(decodeURIComponent(window.location.hash.slice(1)));
  if (!target) return;
  if (target.closest("[hidden]")) {
    $("search").value = "";
    search();
  }
  target.scrollIntoView();
}

function listen() {
  $("search").addEventListener("input", search);
  for (const form of [$("finder"), $("access")]) form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", reveal);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select")) return;
    event.preventDefault();
    $("search").focus();
  });
  $("contents").open = !window.matchMedia("(max-width: 52rem)").matches;
}

async function start() {
  listen();
  try {
    const answer = await fetch(new URL("openapi.json", BASE), { credentials: "omit" });
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    api = await answer.json();
  } catch (error) {
    $("about").replaceChildren(h("p", { class: "bad", role: "alert" }, `openapi.json can't be read: ${error.message}`));
    return;
  }
  draw();
  reveal();
}

start();
