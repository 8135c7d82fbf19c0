// From Prometheus' answers to Grafana's data frames, as its Prometheus data source makes them.
import { FieldType, applyFieldOverrides, toDataFrame, transformDataFrame } from '@grafana/data';
import { lastValueFrom, of } from 'rxjs';
import { fieldConfigRegistry } from './registry.js';

const number = (text) => (text === 'NaN' ? null : Number(text.replace('Inf', 'Infinity')));

export async function framesOf(panel, answers, range, theme) {
  const frames = (panel.targets ?? []).flatMap((target) => {
    const result = answers[target.refId] ?? [];
    if (target.format === 'table') {
      return [tableOf(target, result, panel.targets.length > 1)];
    }
    return result.map((one) => seriesOf(target, one, range));
  });
  const context = { interpolate: (text) => text };
  const made = panel.transformations?.length
    ? await lastValueFrom(transformDataFrame(panel.transformations, frames.filter((one) => one.length), context))
    : frames;
  return applyFieldOverrides({
    data: made, fieldConfig: panel.fieldConfig, fieldConfigRegistry, theme, timeZone: 'utc', replaceVariables: (text) => text,
  });
}

function seriesOf(target, { metric, values, value }, range) {
  const points = new Map((values ?? [value]).map(([at, text]) => [Math.round(at * 1000), number(text)]));
  const times = [];
  if (values) {
    // A step without a sample is a gap.
    for (let at = range.from; at <= range.to; at += range.step) {
      times.push(at);
    }
  } else {
    times.push(...points.keys());
  }
  return toDataFrame({
    refId: target.refId,
    name: legend(target.legendFormat, metric),
    fields: [
      { name: 'Time', type: FieldType.time, values: times, config: {} },
      {
        name: 'Value', type: FieldType.number, labels: metric, values: times.map((at) => points.get(at) ?? null),
        config: { displayNameFromDS: legend(target.legendFormat, metric) },
      },
    ],
  });
}

function tableOf(target, result, several) {
  const labels = [...new Set(result.flatMap((one) => Object.keys(one.metric)))].sort();
  return toDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: result.map((one) => one.value[0] * 1000), config: {} },
      ...labels.map((label) => ({
        name: label, type: FieldType.string, values: result.map((one) => one.metric[label] ?? ''), config: {},
      })),
      {
        name: several ? `Value #${target.refId}` : 'Value', type: FieldType.number, config: {},
        values: result.map((one) => number(one.value[1])),
      },
    ],
  });
}

function legend(format, metric) {
  if (!format || format === '__auto') {
    return Object.entries(metric).map(([name, value]) => `${name}="${value}"`).join(', ') || 'Value';
  }
  return format.replace(/{{\s*(\w+)\s*}}/g, (_, name) => metric[name] ?? '');
}
