"""From the model to the JSON that Grafana imports. Pure. Called by `files`.

Queries of stats, bars and tables are instant, those of time series are ranges. `DOCS` is where links to the docs lead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .model import NOTHING, Annotation, Column, Dashboard, Panel, Query, Steps, Variable

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 39
DOCS = "https://github.com/stoker-dev/stoker/blob/main/docs/dashboards.md"
_HERE = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"
LINKS = {
    "Job": ("This job", f"/d/stoker-job?{_HERE}&var-project=${{__data.fields.Project}}&var-job=${{__data.fields.Job}}"),
    "Node": ("This node", f"/d/stoker-gpu?{_HERE}&var-node=${{__data.fields.Node}}"),
    "Queue": ("This queue", f"/d/stoker-queue?{_HERE}&var-queue=${{__data.fields.Queue}}"),
}
"""Heading of a table's column → where its cells lead."""
_JOB_LINK = f"/d/stoker-job?{_HERE}&var-project=${{__field.labels.project}}&var-job=${{__field.labels.job_name}}"
_GPU_LINK = f"/d/stoker-gpu?{_HERE}&var-node=${{__field.labels.node}}&var-gpu=${{__field.labels.gpu}}"


def dashboard(one: Dashboard, every: Sequence[Dashboard]) -> dict[str, Any]:
    others = [_link(f"{other.title}", f"/d/{other.uid}") for other in every if other is not one]
    return {
        "uid": one.uid,
        "title": one.title,
        "description": one.text,
        "tags": ["stoker"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": one.since, "to": "now"},
        "timezone": "",
        "links": [*others, {**_link("What this shows", DOCS), "includeVars": False, "keepTime": False}],
        "templating": {"list": [_source(), *(_variable(variable) for variable in one.variables)]},
        "annotations": {"list": [_annotation(annotation) for annotation in one.annotations]},
        "panels": list(_panels(one)),
    }


def _link(title: str, url: str) -> dict[str, Any]:
    return {
        "title": title, "type": "link", "icon": "external link", "url": url, "tags": [], "asDropdown": False,
        "includeVars": True, "keepTime": True, "targetBlank": False, "tooltip": "",
    }  # fmt: skip


def _source() -> dict[str, Any]:
    return {
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {},
        "refresh": 1, "regex": "", "hide": 0,
    }  # fmt: skip


def _variable(one: Variable) -> dict[str, Any]:
    query = f"label_values({one.series}, {one.label})"
    made: dict[str, Any] = {
        "name": one.name, "label": one.title, "type": "query", "datasource": SOURCE, "definition": query,
        "query": {"query": query, "refId": one.name}, "refresh": 2, "sort": 3 if one.name == "gpu" else 1,
        "multi": one.multi, "includeAll": one.every, "hide": 0, "regex": "", "current": {},
    }  # fmt: skip
    if one.every:
        made["current"] = {"text": "All", "value": "$__all"}
        if not one.listed:
            made["allValue"] = ".*"
    return made


def _annotation(one: Annotation) -> dict[str, Any]:
    return {
        "name": one.title, "datasource": SOURCE, "enable": True, "hide": False, "iconColor": one.color,
        "expr": one.expr, "step": "60s", "titleFormat": one.title, "textFormat": one.text, "tagKeys": "",
        "useValueForTime": False,
    }  # fmt: skip


def _panels(one: Dashboard) -> Iterator[dict[str, Any]]:
    """Panels fill lines of 24 columns; a line is as high as its highest panel."""
    number, top = 1, 0
    for row in one.rows:
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        heading = {"id": number, "type": "row", "title": row.title, "collapsed": row.folded, "gridPos": place}
        number, top = number + 1, top + 1
        left = height = 0
        panels = []
        for panel in row.panels:
            if left + panel.width > 24:
                left, top, height = 0, top + height, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            panels.append({"id": number, **_panel(panel), "gridPos": place})
            number, left, height = number + 1, left + panel.width, max(height, panel.height)
        top += height
        yield {**heading, "panels": panels if row.folded else []}
        yield from () if row.folded else panels


def _panel(one: Panel) -> dict[str, Any]:
    build = {
        "timeseries": _timeseries, "stat": _stat, "bargauge": _bargauge, "table": _table, "state-timeline": _timeline,
    }[one.kind]  # fmt: skip
    about = {"type": one.kind, "title": one.title, "description": one.text, "datasource": SOURCE}
    return {**about, **build(one)}


def _defaults(one: Panel) -> dict[str, Any]:
    made: dict[str, Any] = {
        "unit": one.unit, "min": one.low, "max": one.high, "decimals": one.decimals, "noValue": one.none or None,
        "thresholds": _thresholds(one.steps, one.base), "mappings": _mappings(one.states),
    }  # fmt: skip
    return {name: value for name, value in made.items() if value is not None}


def _timeseries(one: Panel) -> dict[str, Any]:
    custom = {
        "drawStyle": "bars" if one.bars else "line", "lineWidth": 1, "fillOpacity": 40 if one.stack else 0,
        "showPoints": "never", "spanNulls": False,
        "stacking": {"mode": "normal" if one.stack else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if one.steps else "off"},
    }  # fmt: skip
    dashed = [
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
        {"id": "custom.fillOpacity", "value": 0},
        {"id": "custom.stacking", "value": {"mode": "none", "group": "A"}},
    ]
    overrides = [
        {"matcher": {"id": "byFrameRefID", "options": ref}, "properties": dashed}
        for ref, query in _refs(one.queries)
        if query.dashed
    ]
    defaults = {**_defaults(one), "color": {"mode": "palette-classic"}, "custom": custom}
    defaults |= {"links": links} if (links := _series_links(one)) else {}
    return {
        "fieldConfig": {"defaults": defaults, "overrides": overrides},
        "options": {
            "legend": {
                "displayMode": "list",
                "placement": "bottom",
                "showLegend": True,
                "calcs": ["lastNotNull", "max"],
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [_target(ref, query, instant=False) for ref, query in _refs(one.queries)],
    }


def _timeline(one: Panel) -> dict[str, Any]:
    return {
        "fieldConfig": {"defaults": {**_defaults(one), "color": {"mode": "thresholds"}}, "overrides": []},
        "options": {
            "mergeValues": True, "showValue": "never", "rowHeight": 0.8,
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "single"},
        },
        "targets": [_target(ref, query, instant=False) for ref, query in _refs(one.queries)],
    }  # fmt: skip


def _series_links(one: Panel) -> list[dict[str, Any]]:
    legends = " ".join(query.legend for query in one.queries)
    if "{{job_name}}" in legends:
        return [{"title": "This job", "url": _JOB_LINK}]
    return [{"title": "This GPU", "url": _GPU_LINK}] if "{{node}}/{{gpu}}" in legends else []


_REDUCE = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def _stat(one: Panel) -> dict[str, Any]:
    return {
        "fieldConfig": {"defaults": {**_defaults(one), "color": {"mode": "thresholds"}}, "overrides": []},
        "options": {
            "colorMode": "background" if one.states or one.by_name else "value", "graphMode": "none",
            "justifyMode": "auto", "orientation": "auto", "textMode": "name" if one.by_name else "auto",
            "reduceOptions": _REDUCE, "wideLayout": True, **_text(one),
        },
        "targets": [_target(ref, query, instant=True) for ref, query in _refs(one.queries)],
    }  # fmt: skip


def _text(one: Panel) -> dict[str, Any]:
    """Sizes that fit where one panel shows many GPUs, or a word."""
    if one.by_name:
        return {"text": {"titleSize": 22}}
    return {"text": {"titleSize": 12, "valueSize": 20}} if any(query.legend for query in one.queries) else {}


def _bargauge(one: Panel) -> dict[str, Any]:
    defaults = {**_defaults(one), "color": {"mode": "thresholds"}}
    defaults |= {"links": links} if (links := _series_links(one)) else {}
    return {
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "displayMode": "basic", "orientation": "horizontal", "reduceOptions": _REDUCE, "showUnfilled": True,
            "valueMode": "color", "namePlacement": "auto", "sizing": "auto", "minVizHeight": 16, "minVizWidth": 8,
        },
        "targets": [_target(ref, query, instant=True) for ref, query in _refs(one.queries)],
    }  # fmt: skip


def _table(one: Panel) -> dict[str, Any]:
    refs = list(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", one.columns, strict=False))
    value = "Value" if len(refs) == 1 else "Value #{}"
    names = {**one.labels, **{value.format(ref): column.title for ref, column in refs}}
    organize = {
        "excludeByName": {"Time": True, "cluster": True, "job_uid": True},
        "renameByName": names,
        "indexByName": {name: number for number, name in enumerate(names)},
    }
    steps: list[dict[str, Any]] = [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}]
    if one.sort:
        steps.append({"id": "sortBy", "options": {"sort": [{"field": one.sort, "desc": True}]}})
    if one.most:
        steps.append({"id": "limit", "options": {"limitField": str(one.most)}})
    cells = [_cells(column) for column in one.columns]
    linked = [_linked(heading) for heading in one.labels.values() if heading in LINKS]
    cells += [_coloured(heading, colors) for heading, colors in one.colors.items()]
    defaults: dict[str, Any] = {"custom": {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": False}}
    defaults |= {"thresholds": _thresholds((), "green"), "noValue": NOTHING}
    return {
        "fieldConfig": {"defaults": defaults, "overrides": [*cells, *linked]},
        "options": {"showHeader": True, "cellHeight": "sm", "footer": {"show": False}},
        "transformations": steps,
        "targets": [
            {**_target(ref, Query(column.expr), instant=True), "format": "table", "legendFormat": ""}
            for ref, column in refs
        ],
    }


def _cells(one: Column) -> dict[str, Any]:
    properties: list[dict[str, Any]] = [
        {"id": "unit", "value": one.unit},
        {"id": "custom.cellOptions", "value": _look(one)},
        {"id": "thresholds", "value": _thresholds(one.steps, one.base)},
    ]
    if one.states:
        properties.append({"id": "mappings", "value": _mappings(one.states)})
    if one.decimals is not None:
        properties.append({"id": "decimals", "value": one.decimals})
    if one.look == "gauge":
        properties += [{"id": "min", "value": 0}, {"id": "max", "value": 1}]
    return {"matcher": {"id": "byName", "options": one.title}, "properties": properties}


def _look(one: Column) -> dict[str, str]:
    if one.look == "gauge":
        return {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
    return {"type": one.look, "mode": "basic"} if one.look == "color-background" else {"type": one.look}


def _coloured(heading: str, colors: Mapping[str, str]) -> dict[str, Any]:
    options = {value: {"color": color, "index": number} for number, (value, color) in enumerate(colors.items())}
    return {
        "matcher": {"id": "byName", "options": heading},
        "properties": [
            {"id": "custom.cellOptions", "value": {"type": "color-background", "mode": "basic"}},
            {"id": "mappings", "value": [{"type": "value", "options": options}]},
        ],
    }


def _linked(heading: str) -> dict[str, Any]:
    title, url = LINKS[heading]
    links = [{"title": title, "url": url}]
    return {"matcher": {"id": "byName", "options": heading}, "properties": [{"id": "links", "value": links}]}


def _refs(queries: Sequence[Query]) -> list[tuple[str, Query]]:
    return list(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", queries, strict=False))


def _target(ref: str, query: Query, *, instant: bool) -> dict[str, Any]:
    return {
        "refId": ref, "datasource": SOURCE, "expr": query.expr, "legendFormat": query.legend or "__auto",
        "instant": instant, "range": not instant, "editorMode": "code",
    }  # fmt: skip


def _thresholds(steps: Steps, base: str) -> dict[str, Any]:
    colored = [{"color": color, "value": value} for value, color in steps]
    return {"mode": "absolute", "steps": [{"color": base, "value": None}, *colored]}


def _mappings(states: Mapping[int, tuple[str, str]]) -> list[dict[str, Any]]:
    if not states:
        return []
    options = {
        str(value): {"text": text, "color": color, "index": number}
        for number, (value, (text, color)) in enumerate(states.items())
    }
    return [{"type": "value", "options": options}]
