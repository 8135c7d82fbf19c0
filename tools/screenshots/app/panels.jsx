// One panel, drawn by Grafana's own components. A type that is not here must not be in our dashboards.
import { FieldType, VizOrientation, getDisplayValueAlignmentFactors, getFieldDisplayValues } from '@grafana/data';
import { BarGauge, BigValue, Table, TimeSeries, VizRepeater } from '@grafana/ui';
import React from 'react';

export function Visual({ panel, frames, range, annotations, theme, width, height }) {
  const size = { width, height };
  const draw = { timeseries: Series, stat: Stat, bargauge: Bars, table: Rows }[panel.type];
  if (!draw) {
    throw new Error(`${panel.title}: nothing here draws a ${panel.type}`);
  }
  return React.createElement(draw, { panel, frames, range, annotations, theme, size });
}

function Nothing({ panel, size }) {
  const text = panel.fieldConfig.defaults.noValue ?? 'No data';
  return <div style={{ ...size, display: 'grid', placeItems: 'center', opacity: 0.7 }}>{text}</div>;
}

function Series({ panel, frames, range, annotations, theme, size }) {
  if (!frames.some((frame) => frame.fields.some((field) => field.type === FieldType.number))) {
    return <Nothing panel={panel} size={size} />;
  }
  return (
    <TimeSeries
      frames={frames} {...size} timeRange={range.grafana} timeZone="utc" legend={panel.options.legend} theme={theme}
      options={panel.options}
    >
      {(config) => {
        config.addHook('draw', (plot) => drawAnnotations(plot, annotations, theme));
        return null;
      }}
    </TimeSeries>
  );
}

function drawAnnotations(plot, annotations, theme) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.setLineDash([4, 4]);
  for (const { at, color } of annotations) {
    const x = plot.valToPos(at * 1000, 'x', true);
    ctx.strokeStyle = ctx.fillStyle = theme.visualization.getColorByName(color);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.beginPath();
    ctx.moveTo(x - 5, bbox.top + bbox.height + 6);
    ctx.lineTo(x + 5, bbox.top + bbox.height + 6);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.fill();
  }
  ctx.restore();
}

function values(panel, frames, theme) {
  return getFieldDisplayValues({
    data: frames, fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions, replaceVariables: (text) => text,
    theme, timeZone: 'utc',
  });
}

function Stat({ panel, frames, theme, size }) {
  const { colorMode, graphMode, justifyMode, textMode } = panel.options;
  return (
    <VizRepeater
      {...size} source={frames} renderCounter={1} orientation={VizOrientation.Auto} autoGrid
      getValues={() => values(panel, frames, theme)}
      renderValue={({ value, width, height, count }) => (
        <BigValue
          value={value.display} count={count} {...{ width, height, colorMode, graphMode, justifyMode, textMode, theme }}
          wideLayout={panel.options.wideLayout} text={panel.options.text}
        />
      )}
    />
  );
}

function Bars({ panel, frames, theme, size }) {
  const found = values(panel, frames, theme);
  if (!frames.length) {
    return <Nothing panel={panel} size={size} />;
  }
  const { displayMode, showUnfilled, valueMode, namePlacement, minVizHeight } = panel.options;
  return (
    <VizRepeater
      {...size} source={frames} renderCounter={1} orientation={VizOrientation.Horizontal} minVizHeight={minVizHeight}
      maxVizHeight={40} itemSpacing={8} getValues={() => found}
      getAlignmentFactors={(all) => getDisplayValueAlignmentFactors(all)}
      renderValue={({ value, width, height, orientation, alignmentFactors, count }) => (
        <BarGauge
          value={value.display} field={value.field} display={value.view?.getFieldDisplayProcessor(value.colIndex)}
          {...{ width, height, orientation, alignmentFactors, displayMode, showUnfilled, namePlacement, theme }}
          valueDisplayMode={valueMode} itemSpacing={8} lcdCellWidth={12} isOverflow={false} count={count}
        />
      )}
    />
  );
}

function Rows({ panel, frames, size }) {
  const [frame] = frames;
  if (!frame?.length) {
    return <Nothing panel={panel} size={size} />;
  }
  return <Table data={frame} {...size} cellHeight={panel.options.cellHeight} columnMinWidth={60} />;
}
