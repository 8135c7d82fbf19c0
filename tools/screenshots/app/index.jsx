// One dashboard as Grafana would lay it out: window.SHOT holds it, its answers and the variables that were chosen.
import { ThemeContext, createTheme, dateTime } from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';
import { GlobalStyles, PanelChrome } from '@grafana/ui';
import React, { useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';
import '@fontsource/inter/400.css';
import '@fontsource/inter/500.css';
import 'uplot/dist/uPlot.min.css';
import { framesOf } from './frames.js';
import { Visual } from './panels.jsx';

const CELL = 30;
const GAP = 8;
const theme = createTheme({ colors: { mode: 'dark' } });
const { dashboard, answers, annotations, chosen, from, to, step, width, note } = window.SHOT;
const range = { from, to, step, grafana: { from: dateTime(from), to: dateTime(to), raw: { from: 'now-6h', to: 'now' } } };
const column = (width - GAP) / 24;

function place({ x, y, w, h }) {
  return { position: 'absolute', left: x * column + GAP, top: y * (CELL + GAP) + GAP + 76, width: w * column - GAP, height: h * (CELL + GAP) - GAP };
}

function Panel({ panel }) {
  const [frames, setFrames] = useState(null);
  const [error, setError] = useState('');
  useEffect(() => {
    framesOf(panel, answers[panel.id] ?? {}, range, theme).then(setFrames, (failed) => {
      console.error(`BROKEN PANEL ${panel.title}: ${failed.stack}`);
      setError(String(failed));
    });
  }, [panel]);
  const at = place(panel.gridPos);
  if (panel.type === 'row') {
    return <div style={{ ...at, ...theme.typography.h5, paddingTop: 4 }}>⌄ {panel.title}</div>;
  }
  return (
    <div style={at}>
      <PanelChrome title={panel.title} description={panel.description} width={at.width} height={at.height} statusMessage={error}>
        {(innerWidth, innerHeight) =>
          frames && (
            <Visual
              panel={panel} frames={frames} range={range} annotations={annotations} theme={theme} width={innerWidth}
              height={innerHeight}
            />
          )
        }
      </PanelChrome>
    </div>
  );
}

function Dashboard() {
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div style={{ position: 'absolute', left: GAP, top: GAP, right: GAP }}>
        <div style={{ ...theme.typography.h3 }}>{dashboard.title}</div>
        <div style={{ marginTop: 6, color: theme.colors.text.secondary }}>
          {Object.entries(chosen).map(([name, value]) => <span key={name} style={{ marginRight: 18 }}>{name} <b>{value}</b></span>)}
          <span>{note}</span>
        </div>
      </div>
      {dashboard.panels.map((panel) => <Panel key={panel.id} panel={panel} />)}
    </ThemeContext.Provider>
  );
}

await initPluginTranslations('stoker');
await Promise.all([400, 500].map((weight) => document.fonts.load(`${weight} 12px Inter`))); // text is measured
createRoot(document.getElementById('root')).render(<Dashboard />);
