// A JSON schema of the api's document as a list of fields, each with its type, bounds and description; what is below opens.
import { html, useState } from "../ui.js";

/** Text with `code` in it. */
export function Prose({ text }) {
  return text.split("`").map((one, n) => (n % 2 ? html`<code>${one}</code>` : one));
}

function resolved(schema, schemas) {
  return schema.$ref ? schemas[schema.$ref.split("/").at(-1)] : schema;
}

/** Its forms but null: [schema], none of them a choice. */
function forms(schema, schemas) {
  const one = resolved(schema, schemas);
  const choice = one.anyOf ?? one.oneOf;
  return choice ? choice.flatMap((each) => forms(each, schemas)) : one.type === "null" ? [] : [one];
}

export function typeOf(schema, schemas) {
  return forms(schema, schemas).map((one) => described(one, schemas)).filter(Boolean).join(" or ");
}

function described(one, schemas) {
  if (one.enum) return one.enum.map((value) => JSON.stringify(value)).join(", ");
  if (one.const !== undefined) return JSON.stringify(one.const);
  if (one.type === "array") return `list of ${typeOf(one.items, schemas) || "anything"}${upTo(one.maxItems)}`;
  if (one.type === "object" && one.additionalProperties instanceof Object) return `map to ${typeOf(one.additionalProperties, schemas) || "anything"}`;
  if (one.type === "integer" || one.type === "number") return `${one.type}${range(one.minimum ?? above(one.exclusiveMinimum), one.maximum)}`;
  if (one.type === "string") return `${one.format ?? "string"}${upTo(one.maxLength)}`;
  return one.type ?? "";
}

const above = (n) => (n === undefined ? undefined : `over ${n}`);
const upTo = (n) => (n === undefined ? "" : `, at most ${n}`);
const range = (least, most) => (least === undefined && most === undefined ? "" : ` ${least ?? "…"} to ${most ?? "…"}`);

/** The objects that a value is or holds. */
function objects(schema, schemas) {
  return forms(schema, schemas).flatMap((one) => {
    if (one.properties) return [one];
    if (one.type === "array") return objects(one.items, schemas);
    return one.additionalProperties instanceof Object ? objects(one.additionalProperties, schemas) : [];
  });
}

export function Schema({ schema, schemas }) {
  const found = objects(schema, schemas);
  if (found.length === 0) return html`<p class="faint">${typeOf(schema, schemas) || "Anything."}</p>`;
  return found.map((one) => html`<ul class="schema">${Object.entries(one.properties).map(([name, field]) => html`<${Field} key=${name} ...${{ name, field, schemas }} required=${one.required?.includes(name)} />`)}</ul>`);
}

function Field({ name, field, schemas, required }) {
  const [open, setOpen] = useState(false);
  const below = objects(field, schemas);
  const start = field.default === undefined || field.default === null || JSON.stringify(field.default).length > 60 || ["[]", "{}", '""'].includes(JSON.stringify(field.default)) ? "" : `, default ${JSON.stringify(field.default)}`;
  const head = html`<code>${name}</code> <span class="faint">${below.length === 0 ? typeOf(field, schemas) : ""}${required ? " required" : ""}${start}</span> <${Prose} text=${field.description ?? ""} />`;
  if (below.length === 0) return html`<li>${head}</li>`;
  return html`<li><details open=${open} onToggle=${(event) => (event.stopPropagation(), setOpen(event.target.open))}><summary>${head}</summary>${open && html`<${Schema} schema=${field} schemas=${schemas} />`}</details></li>`;
}
