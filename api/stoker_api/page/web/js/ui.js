// What views are made of: preact, its hooks, signals, and HTML as tagged text. What users wrote goes in as text, never markup.
import { h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { render };
export { useEffect, useLayoutEffect, useMemo, useRef, useState, useCallback } from "../vendor/preact-hooks.js";
export { batch, computed, effect, signal, useComputed, useSignal } from "../vendor/signals.js";
export const html = htm.bind(h);
