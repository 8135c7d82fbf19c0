// What of a field's configuration our dashboards use, and the transformations of their tables. Grafana's server code
// registers these; the components alone know none.
import { Registry, standardTransformers, standardTransformersRegistry } from '@grafana/data';

const STANDARD = ['unit', 'min', 'max', 'decimals', 'displayName', 'noValue', 'color', 'thresholds', 'mappings', 'links'];
const CUSTOM = [
  'drawStyle', 'lineWidth', 'fillOpacity', 'showPoints', 'spanNulls', 'stacking', 'lineStyle', 'thresholdsStyle', 'align',
  'cellOptions', 'filterable',
];
const USED = ['mergeTransformer', 'organizeFieldsTransformer', 'orderFieldsTransformer', 'renameFieldsTransformer',
  'filterFieldsByNameTransformer', 'filterFieldsTransformer', 'sortByTransformer', 'limitTransformer'];

const plain = (id, path, isCustom) => ({
  id, path, isCustom, name: id, process: (value) => value, shouldApply: () => true, override: () => null, editor: () => null,
});

export const fieldConfigRegistry = new Registry(() => [
  ...STANDARD.map((id) => plain(id, id, false)),
  ...CUSTOM.map((id) => plain(`custom.${id}`, id, true)),
]);

standardTransformersRegistry.setInit(() =>
  USED.map((name) => standardTransformers[name]).map((one) => ({
    id: one.id, name: one.name, transformation: () => Promise.resolve(one), editor: () => null,
  }))
);
