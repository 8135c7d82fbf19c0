// JSON data as YAML, to be read; and what differs between two texts, line by line.
const PLAIN = /^[A-Za-z_./][\w ./+@=-]*$/;
const WORDS = new Set(["true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"]);

function scalar(value) {
  if (typeof value !== "string") return JSON.stringify(value);
  const safe = PLAIN.test(value) && !WORDS.has(value.toLowerCase()) && !value.endsWith(" ");
  return safe ? value : JSON.stringify(value);
}

const isEmpty = (value) => value === null || typeof value !== "object" || Object.keys(value).length === 0;

export function yaml(value, indent = "") {
  if (isEmpty(value)) return indent + (Array.isArray(value) ? "[]" : value !== null && typeof value === "object" ? "{}" : scalar(value));
  if (Array.isArray(value)) return value.map((item) => `${indent}- ${yaml(item, indent + "  ").trimStart()}`).join("\n");
  return Object.entries(value)
    .map(([name, item]) => `${indent}${scalar(name)}:${isEmpty(item) ? " " + yaml(item) : "\n" + yaml(item, indent + "  ")}`)
    .join("\n");
}

/** Lines with their marks: [" " | "-" | "+", line]. The longest common part stays. */
export function difference(before, after) {
  const [a, b] = [before.split("\n"), after.split("\n")];
  const common = Array.from({ length: a.length + 1 }, () => new Uint32Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      common[i][j] = a[i] === b[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  const lines = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) [lines[lines.length], i, j] = [[" ", a[i]], i + 1, j + 1];
    else if (j >= b.length || (i < a.length && common[i + 1][j] >= common[i][j + 1])) lines.push(["-", a[i++]]);
    else lines.push(["+", b[j++]]);
  }
  return lines;
}

/** Where several objects differ: [path, value of each as text], in order. */
export function differing(objects) {
  const flat = objects.map((object) => new Map(leaves(object)));
  const paths = [...new Set(flat.flatMap((one) => [...one.keys()]))].sort();
  return paths.map((path) => [path, flat.map((one) => one.get(path))]).filter(([, values]) => new Set(values).size > 1);
}

function leaves(value, path = "") {
  if (isEmpty(value) || Array.isArray(value)) return [[path, typeof value === "string" ? value : JSON.stringify(value)]];
  return Object.entries(value).flatMap(([name, item]) => leaves(item, path ? `${path}.${name}` : name));
}
