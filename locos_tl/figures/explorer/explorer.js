// The linked view of one scoring run: a map of heads, the panel of a head, and two maps against each other.
// `mount` builds it inside an element; every text of the data is set as text, never as HTML.
globalThis.locosExplorer = (() => {
  "use strict";
  const TOP = 10, FOLD = 72, PEAKS = 6;
  const MINUS = "\u2212", DASH = "\u2013", DOT = "\u25cf";

  // --- small helpers ----------------------------------------------------------------------------

  function h(tag, props, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(props || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "style") Object.assign(node.style, value);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return node;
  }
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
  const floats = (text) => new Float32Array(bytes(text));
  const indices = (text) => new Uint16Array(bytes(text));
  const NONE = 0xffff;
  function quantised({scale, values}) {
    const scales = floats(scale), steps = new Int16Array(bytes(values));
    const width = scales.length ? steps.length / scales.length : 0;
    return {width, row: (cell) => Array.from(steps.subarray(cell * width, (cell + 1) * width), (v) => v * scales[cell])};
  }
  function number(value, digits = 3) {
    if (!Number.isFinite(value)) return DASH;
    const shown = Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(digits)));
    return shown.replace("-", MINUS);
  }
  const signed = (value) => (value > 0 ? "+" : "") + number(value);
  // Plotly reads a few HTML tags and %{...} in its labels.
  const label = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/%\{/g, "% {");
  const inNeedle = ({needle: [start, end]}, position) => position >= start && position < end;
  const oneLine = (text) => text.replace(/\n/g, "\u23ce");
  const finite = (values) => Array.from(values).filter(Number.isFinite);
  const known = new WeakMap();
  function ranks(values) {
    if (known.has(values)) return known.get(values);
    const order = Array.from(values.keys()).filter((i) => Number.isFinite(values[i])).sort((a, b) => values[b] - values[a] || a - b);
    const of = new Map(order.map((cell, rank) => [cell, rank + 1]));
    const found = {order, of};
    known.set(values, found);
    return found;
  }
  const blend = (knots, at) => {
    const where = at * (knots.length - 1), first = Math.min(Math.floor(where), knots.length - 2), share = where - first;
    const rgb = (color) => [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
    const [a, b] = [rgb(knots[first]), rgb(knots[first + 1])];
    return `rgb(${a.map((v, i) => Math.round(v + share * (b[i] - v))).join(",")})`;
  };
  // 0 is neutral and equal sizes are equally strong; the scale is cut at the ends, not stretched.
  function centredScale(low, high, sides) {
    const reach = Math.max(-low, high);
    if (!(reach > 0)) return [[0, sides.positive[0]], [1, sides.positive[0]]];
    const stops = [[-low / (high - low), sides.positive[0]]];
    for (const [knots, end, sign] of [[sides.negative, -low, -1], [sides.positive, high, 1]]) {
      if (!(end > 0)) continue;
      const sizes = knots.map((_, i) => (i / (knots.length - 1)) * reach).filter((size) => size > 0 && size < end);
      for (const size of [...sizes, end]) stops.push([(sign * size - low) / (high - low), blend(knots, size / reach)]);
    }
    return stops.sort((a, b) => a[0] - b[0]);
  }
  function isDark() {
    const {body, documentElement} = document;
    if ("printing" in documentElement.dataset) return false;
    if (body.dataset.jpThemeLight !== undefined) return body.dataset.jpThemeLight === "false";
    if (/\bvscode-(dark|high-contrast)\b/.test(body.className)) return true;
    if (/\bvscode-light\b/.test(body.className)) return false;
    return matchMedia("(prefers-color-scheme: dark)").matches;
  }

  // --- the data ---------------------------------------------------------------------------------

  function decode(raw) {
    const maps = raw.maps.map((map) => ({
      ...map,
      mean: floats(map.mean), low: floats(map.low), high: floats(map.high), unseen: new Set(map.unseen),
      trials: Object.fromEntries(Object.entries(map.trials).map(([id, text]) => [id, floats(text)])),
    }));
    return {...raw, maps};
  }
  // A reading is large, so it is unpacked when it is first looked at.
  const unpacked = new WeakMap();
  function unpack(reading) {
    if (!unpacked.has(reading)) unpacked.set(reading, {
      ...reading,
      text: new Map(reading.positions.map((position, i) => [position, reading.tokens[i]])),
      attention: quantised(reading.attention), own_attention: quantised(reading.own_attention),
      phi: reading.phi.map(quantised), own_phi: reading.own_phi.map(quantised),
      own: Array.from(indices(reading.own), (place) => (place === NONE ? -1 : reading.positions[place])), total: reading.total.map(floats),
      promoted: indices(reading.promoted), suppressed: indices(reading.suppressed),
      promoted_logits: quantised(reading.promoted_logits), suppressed_logits: quantised(reading.suppressed_logits),
    });
    return unpacked.get(reading);
  }

  function mount(root, raw, {Plotly, onSelect = () => {}, selected = null} = {}) {
    const data = decode(raw);
    const {layers, heads, kv} = data;
    const detectors = [...new Map(data.maps.map((map) => [map.detector, map])).values()];
    const first = data.maps[0];
    const best = ranks(first.mean).order[0] ?? 0;
    const state = {
      detector: first.detector, variant: first.variant, trial: "", axis: "query", colour: "score",
      head: selected || [Math.floor(best / first.heads), best % first.heads].map((v, i) => (i && first.heads !== heads ? v * (heads / kv) : v)),
      pinned: null, reading: 0, unfolded: false, brushed: new Set(),
      x: (data.maps.find((map) => map.detector !== first.detector && map.heads === heads) || first).name, y: first.name,
    };
    const uid = `lx${Math.random().toString(36).slice(2, 8)}`;
    const group = (head) => Math.floor(head / (heads / kv));
    const name = (layer, head, axis = "query") => (axis === "kv" ? `L${layer} KV${head}` : `L${layer}H${head}`);
    const palette = () => data.palette[isDark() ? "dark" : "light"];

    // --- what the map shows ----------------------------------------------------------------------

    function currentMap() {
      const those = data.maps.filter((map) => map.detector === state.detector);
      return those.find((map) => map.variant === state.variant) || those[0];
    }
    function view(map = currentMap()) {
      const base = (state.trial && map.trials[state.trial]) || map.mean;
      const single = base !== map.mean;
      if (map.heads !== heads || state.axis === "query" || kv === heads) {
        return {map, values: base, columns: map.heads, axis: map.heads === heads ? "query" : "kv", single};
      }
      const values = new Float32Array(layers * kv), size = heads / kv;
      for (let cell = 0; cell < values.length; cell++) {
        const part = finite(base.subarray(cell * size, (cell + 1) * size));
        values[cell] = part.length ? part.reduce((a, b) => a + b, 0) : NaN;
      }
      return {map, values, columns: kv, axis: "kv", single, summed: true};
    }
    const cellOf = ({columns, axis}, [layer, head]) => layer * columns + (axis === "kv" && columns !== heads ? group(head) : head);
    function headOf(shown, cell) {
      const layer = Math.floor(cell / shown.columns), column = cell % shown.columns;
      if (shown.columns === heads) return [layer, column];
      const size = heads / kv, scores = shown.map.heads === heads ? shown.map.mean : null;
      const members = Array.from({length: size}, (_, i) => column * size + i);
      const score = (head) => (scores && Number.isFinite(scores[layer * heads + head]) ? scores[layer * heads + head] : -Infinity);
      return [layer, members.reduce((a, b) => (score(b) > score(a) ? b : a))];
    }

    // --- frame -----------------------------------------------------------------------------------

    const select = (title, options, value, change) => {
      const node = h("select", {"aria-label": title, onchange: (event) => change(event.target.value)}, options);
      node.value = value;
      return h("label", {}, h("span", {}, title), node);
    };
    const option = (value, text) => h("option", {value}, text);
    function choice(title, values, key, change) {
      const buttons = values.map(([value, text]) => h("label", {},
        h("input", {type: "radio", name: `${uid}-${key}`, value, checked: state[key] === value, autocomplete: "off",
          onchange: () => change(value)}), h("span", {}, text)));
      return h("fieldset", {class: "lx-choice", "data-key": key}, h("legend", {}, title), buttons);
    }
    const scored = detectors.filter((map) => !map.effect), effects = detectors.filter((map) => map.effect);
    const mapOptions = (list) => list.map((map) => option(map.detector, map.detector));
    const plot = h("div", {class: "lx-plot", tabindex: 0, role: "application", "aria-roledescription": "heatmap", "aria-describedby": `${uid}-keys`});
    const live = h("p", {class: "lx-live", "aria-live": "polite"});
    const caption = h("p", {class: "lx-note lx-caption"});
    const go = (event) => {
      const found = /^\s*L?(\d+)\s*[H.\-, ]\s*(\d+)\s*$/i.exec(event.target.value);
      const ok = found && Number(found[1]) < layers && Number(found[2]) < heads;
      event.target.setCustomValidity(ok || !event.target.value ? "" : `Layers are 0 to ${layers - 1}, heads 0 to ${heads - 1}: L${layers - 1}H0`);
      event.target.reportValidity();
      if (ok) choose([Number(found[1]), Number(found[2])]);
    };
    const goTo = h("input", {type: "text", size: 7, placeholder: "L23H1", "aria-label": "Go to head, such as L23H1", autocomplete: "off",
      onchange: go, onkeydown: (event) => { if (event.key === "Enter") go(event); }});
    const variants = h("span", {class: "lx-variants"});
    const controls = h("div", {class: "lx-controls", role: "group", "aria-label": "What the map shows"},
      select("Map", [h("optgroup", {label: "Detectors"}, mapOptions(scored)), effects.length ? h("optgroup", {label: "Effects"}, mapOptions(effects)) : null],
        state.detector, (value) => { state.detector = value; update({controls: true}); }),
      select("Values", [option("", "mean over trials"), h("optgroup", {label: "One trial"}, data.trials.map((trial) => option(trial.id, `${trial.question || trial.label} (${trial.answer})`)))],
        "", (value) => {
          state.trial = value;
          const at = data.readings.findIndex((reading) => reading.trial === value);
          if (at >= 0) state.reading = at;
          update({panel: at >= 0});
        }),
      variants,
      kv < heads ? choice("Columns", [["query", "query heads"], ["kv", "KV groups"]], "axis", (value) => { state.axis = value; update({}); }) : null,
      choice("Colour", [["score", "score"], ["rank", "rank"]], "colour", (value) => { state.colour = value; update({}); }),
      h("label", {}, h("span", {}, "Go to"), goTo));
    const keys = h("p", {class: "lx-note", id: `${uid}-keys`},
      "Click a cell, or focus the map: arrow keys move, N and P go down and up the ranking, Home and End to the ends of a layer, Enter pins a head to compare.");
    const table = h("details", {class: "lx-table", ontoggle: () => drawTable()}, h("summary", {}, "The map as a table"), h("div", {}));
    const panels = h("div", {class: "lx-panels"});
    const against = h("div", {class: "lx-plot lx-scatter", role: "img"});
    const brushedList = h("div", {class: "lx-brushed"});
    const pairs = () => data.maps.filter((map) => map.heads === heads);
    const compare = pairs().length < 2 ? null : h("section", {class: "lx-compare", "aria-label": "Compare two maps"},
      h("h4", {}, "Compare two maps"),
      h("div", {class: "lx-controls"},
        select("Across", pairs().map((map) => option(map.name, map.name)), state.x, (value) => { state.x = value; drawScatter(); }),
        select("Up", pairs().map((map) => option(map.name, map.name)), state.y, (value) => { state.y = value; drawScatter(); }),
        h("span", {class: "lx-buttons", role: "group", "aria-label": "Mark heads"},
          [["top 10 across", "x"], ["top 10 up", "y"], ["in both", "both"], ["clear", ""]].map(([text, what]) =>
            h("button", {type: "button", onclick: () => brushTop(what)}, text)))),
      against,
      h("p", {class: "lx-note"}, "One point a head. Drag to mark heads: they are ringed in the map. Axes are linear near 0 and logarithmic beyond."),
      brushedList);
    root.classList.add("lx");
    root.replaceChildren(controls,
      h("div", {class: "lx-main"}, h("div", {class: "lx-map"}, h("div", {class: "lx-view"}, plot, caption, keys, live, table), compare || ""), panels));

    // --- the map ---------------------------------------------------------------------------------

    const axisStyle = () => ({showgrid: false, zeroline: false, ticks: "outside", ticklen: 4, tickcolor: "rgba(128,128,128,.4)", constrain: "domain", fixedrange: true});
    const ticks = (n, pixels, spacing) => {
      const step = [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, n].find((s) => s * pixels >= spacing || s >= n);
      return Array.from({length: Math.ceil(n / step)}, (_, i) => i * step);
    };
    const font = () => ({family: "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif", size: 12, color: palette().ink});
    const config = {displaylogo: false, showSendToCloud: false, responsive: true, displayModeBar: false};

    function hoverText(shown, cell, rank, total) {
      const {map, axis, columns, single, summed} = shown;
      const layer = Math.floor(cell / columns), column = cell % columns;
      const value = shown.values[cell];
      const lines = [`<b>${name(layer, column, axis)}</b>`];
      if (!Number.isFinite(value)) {
        lines.push(map.unseen.has(cell) ? "cannot see the needle: sliding-window layer" : "no score here");
        return lines.join("<br>");
      }
      lines.push(`${map.effect ? "effect" : "score"} ${number(value, 4)}`);
      if (!single && !summed && Number.isFinite(map.low[cell])) lines.push(`95 % interval ${number(map.low[cell])} to ${number(map.high[cell])}`);
      lines.push(`rank ${rank} of ${total}`);
      if (axis === "query" && kv < heads) lines.push(`KV group ${group(column)}`);
      return lines.join("<br>");
    }

    function drawMap() {
      const shown = view(), {values, columns, map} = shown;
      const {order, of} = ranks(values);
      const asRank = state.colour === "rank", colours = palette();
      const z = [], texts = [];
      for (let layer = 0; layer < layers; layer++) {
        const cells = Array.from({length: columns}, (_, c) => layer * columns + c);
        z.push(cells.map((cell) => (!Number.isFinite(values[cell]) ? null : asRank ? Math.log10(of.get(cell)) : values[cell])));
        texts.push(cells.map((cell) => hoverText(shown, cell, of.get(cell), order.length)));
      }
      const known = finite(values);
      const low = Math.min(0, ...known), high = Math.max(0, ...known);
      const width = Math.min(Math.max(columns * 44, 240), 560), height = Math.min(Math.max(layers * 19, 150), 640);
      const cellWidth = width / columns, cellHeight = height / layers, gap = Math.min(cellWidth, cellHeight) >= 8 ? 1 : 0;
      const ends = Math.max(1, Math.log10(Math.max(order.length, 2)));
      const bar = {thickness: 12, len: 1, ypad: 0, outlinewidth: 0, ticks: "outside", tickcolor: "rgba(128,128,128,.4)",
        title: {text: asRank ? "rank" : map.effect ? "effect" : "score", side: "top", font: {size: 12}},
        ...(asRank ? {tickvals: [0, 1, 2, 3].filter((t) => t <= ends), ticktext: ["1", "10", "100", "1000"]} : {})};
      const heat = {type: "heatmap", z, customdata: texts, hovertemplate: "%{customdata}<extra></extra>", xgap: gap, ygap: gap, hoverongaps: true,
        zmin: asRank ? 0 : low < high ? low : -1, zmax: asRank ? ends : low < high ? high : 1,
        colorscale: asRank ? "Cividis" : centredScale(low, high, colours), reversescale: asRank, colorbar: bar, showscale: known.length > 0};
      const gaps = Array.from(values.keys()).filter((cell) => !Number.isFinite(values[cell]));
      const marks = (cells, marker) => ({type: "scatter", mode: "markers", x: cells.map((c) => c % columns), y: cells.map((c) => Math.floor(c / columns)), marker, hoverinfo: "skip", showlegend: false});
      const rung = [...new Set([...state.brushed].map((cell) => cellOf(shown, [Math.floor(cell / heads), cell % heads])))];
      const traces = [heat, marks(gaps, {symbol: "x-thin", size: Math.min(cellWidth, cellHeight, 14) * 0.5, line: {width: 1, color: "#808080"}}),
        marks(rung, {symbol: "circle-open", size: Math.min(cellWidth, cellHeight, 16) * 0.7, line: {width: 2}, color: colours.outline})];
      plot.style.maxWidth = `${width + 150}px`;
      plot.style.height = `${height + 74}px`;
      const layout = {font: font(), paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: {l: 52, r: 84, t: 26, b: 46}, dragmode: false, autosize: true,
        hoverlabel: {bgcolor: colours.card, bordercolor: colours.line, font: {color: colours.ink}, align: "left"},
        xaxis: {...axisStyle(), title: {text: shown.axis === "kv" ? "KV group" : "head", standoff: 8}, range: [-0.5, columns - 0.5], tickvals: ticks(columns, cellWidth, 24)},
        yaxis: {...axisStyle(), title: {text: "layer", standoff: 8}, range: [-0.5, layers - 0.5], tickvals: ticks(layers, cellHeight, 17)},
        shapes: outlines(shown, order)};
      Plotly.react(plot, traces, layout, config);
      const what = state.trial && !shown.single ? "This detector does not count the chosen trial: mean over trials. " : "";
      const about = shown.single ? "one trial" : map.counted;
      caption.textContent = `${what}${map.name}, ${about}${shown.summed ? ", summed over the query heads of each KV group" : ""}. Outlined: the top ${Math.min(TOP, order.filter((c) => values[c] !== 0).length)}.${map.units ? ` Scale: ${map.units}.` : ""}${gaps.length ? " Crosses: no score." : ""}`;
      plot.setAttribute("aria-label", `${map.name}, ${layers} layers by ${columns} ${shown.axis === "kv" ? "KV groups" : "heads"}. Highest: ${order.slice(0, 3).map((c) => `${name(Math.floor(c / columns), c % columns, shown.axis)} ${number(values[c])}`).join(", ")}.`);
      drawTable();
    }

    function outlines(shown, order) {
      const colours = palette();
      const box = (cell, line) => {
        const layer = Math.floor(cell / shown.columns), column = cell % shown.columns;
        return {type: "rect", x0: column - 0.5, x1: column + 0.5, y0: layer - 0.5, y1: layer + 0.5, line};
      };
      const top = order.filter((cell) => shown.values[cell] !== 0).slice(0, TOP).map((cell) => box(cell, {color: colours.outline, width: 1.5}));
      const pinned = state.pinned ? [box(cellOf(shown, state.pinned), {color: colours.ink, width: 2, dash: "dot"})] : [];
      return [...top, ...pinned, box(cellOf(shown, state.head), {color: colours.ink, width: 3})];
    }

    function drawTable() {
      if (!table.open) return;
      const shown = view(), {order} = ranks(shown.values);
      const rows = order.slice(0, 30).map((cell, rank) => {
        const head = headOf(shown, cell);
        return h("tr", {}, h("td", {}, String(rank + 1)),
          h("td", {}, h("button", {type: "button", onclick: () => choose(head)}, name(Math.floor(cell / shown.columns), cell % shown.columns, shown.axis))),
          h("td", {}, number(shown.values[cell], 4)),
          h("td", {}, shown.single || shown.summed ? DASH : `${number(shown.map.low[cell])} to ${number(shown.map.high[cell])}`));
      });
      table.lastChild.replaceChildren(grid(["Rank", "Head", shown.map.effect ? "Effect" : "Score", "95 % interval"], rows, `The first ${rows.length} by ${shown.map.name}`));
    }
    const grid = (header, rows, title) => h("table", {}, title ? h("caption", {}, title) : null,
      h("thead", {}, h("tr", {}, header.map((text) => h("th", {scope: "col"}, text)))), h("tbody", {}, rows));

    // --- one head --------------------------------------------------------------------------------

    function panel([layer, head], pinned) {
      const cell = layer * heads + head;
      const title = h("h4", {}, `Layer ${layer}, head ${head}`, kv < heads ? h("small", {}, ` KV group ${group(head)}`) : null);
      const same = state.pinned && state.pinned[0] === layer && state.pinned[1] === head;
      const button = h("button", {type: "button", class: "lx-pin", onclick: () => pin(pinned || same ? null : [layer, head])}, pinned || same ? "Unpin" : "Pin to compare");
      return h("article", {class: pinned ? "lx-panel lx-pinned" : "lx-panel", "aria-label": `${pinned ? "Pinned: layer" : "Layer"} ${layer}, head ${head}`, "data-head": name(layer, head)},
        h("header", {}, title, button), standing(layer, head, cell), ablated(layer, head), reads(cell));
    }

    function standing(layer, head, cell) {
      const rows = data.maps.map((map) => {
        const own = map.heads === heads ? cell : layer * map.heads + group(head);
        const rank = ranks(map.mean).of.get(own), n = finite(map.mean).length;
        const value = map.mean[own];
        const interval = Number.isFinite(map.low[own]) ? `${number(map.low[own])} to ${number(map.high[own])}` : DASH;
        const chosen = map === currentMap();
        return h("tr", {"aria-current": chosen ? "true" : null, class: chosen ? "lx-chosen" : null},
          h("td", {}, h("span", {class: "lx-swatch", style: {background: map.color}}), map.name),
          h("td", {}, Number.isFinite(value) ? number(value) : map.unseen.has(own) ? "sees no needle" : DASH), h("td", {}, interval),
          h("td", {}, rank ? (value === 0 ? "tied at 0" : `${rank} of ${n}`) : DASH));
      });
      const standings = grid(["Map", "Mean", "95 % interval", "Rank"], rows);
      standings.classList.add("lx-standing");
      return standings;
    }

    function ablated(layer, head) {
      const lines = [];
      for (const sweep of data.sweeps) {
        for (const method of sweep.methods) {
          const place = method.ranking.findIndex(([l, k]) => l === layer && k === head);
          const at = method.ks.findIndex((k) => place >= 0 && k > place);
          if (at < 0) continue;
          const set = method.ks[at] === 1 ? `the first of ${method.name}; without it` : `among the first ${method.ks[at]} of ${method.name}; without these`;
          lines.push(h("li", {}, `${sweep.name ? `${sweep.name}: ` : ""}${set} ${sweep.metric} goes from ${number(method.means[0])} to ${number(method.means[at])}.`));
        }
      }
      return lines.length ? h("div", {}, h("h5", {}, "Ablated"), h("ul", {class: "lx-ablated"}, lines)) : null;
    }

    function reads(cell) {
      const packed = data.readings[state.reading];
      if (!packed) return h("p", {class: "lx-note"}, "This run kept no trial token by token, so what the head reads and writes cannot be shown (score with examples=3).");
      const reading = unpack(packed);
      const at = Math.max(0, reading.variants.indexOf(state.variant)), variant = reading.variants[at];
      const kept = positions(reading, cell, at);
      const total = reading.total[at][cell];
      const needle = [...kept.values()].filter((k) => inNeedle(reading, k.position)).reduce((sum, k) => sum + k.phi, 0);
      const trials = select("Trial", data.readings.map((r, i) => option(String(i), `${r.question || r.trial} (${r.answer})`)), String(state.reading),
        (value) => { state.reading = Number(value); update({map: false, panel: true}); });
      const wide = [...kept.keys()].length > FOLD;
      const unfold = wide ? h("button", {type: "button", onclick: () => { state.unfolded = !state.unfolded; update({map: false, panel: true}); }}, state.unfolded ? "Fold the context" : "Unfold the context") : null;
      return h("div", {class: "lx-reads"}, h("div", {class: "lx-controls"}, trials, unfold),
        h("h5", {}, "Reads", h("small", {}, " attention at the answer steps")), strip(reading, kept, "attention"),
        h("h5", {}, "Writes", h("small", {}, ` \u03c6 towards the answer (${variant}): ${signed(total)} in all, ${signed(needle)} from the needle`)), strip(reading, kept, "phi"),
        h("div", {class: "lx-columns"}, peaks(reading, kept, 1), peaks(reading, kept, -1)),
        lens(reading, cell));
    }

    function positions(reading, cell, at) {
      const attention = reading.attention.row(cell), phi = reading.phi[at].row(cell);
      const kept = new Map(reading.shared.map((position, i) => [position, {position, attention: attention[i], phi: phi[i]}]));
      const own = reading.own.slice(cell * reading.n_own, (cell + 1) * reading.n_own);
      const ownAttention = reading.own_attention.row(cell), ownPhi = reading.own_phi[at].row(cell);
      own.forEach((position, i) => { if (position >= 0) kept.set(position, {position, attention: ownAttention[i], phi: ownPhi[i]}); });
      return new Map([...kept].sort((a, b) => a[0] - b[0]));
    }

    // Ends, needle and peaks with two tokens on each side; the rest of a long context is folded.
    function unfoldedPositions(reading, kept, kind) {
      const all = [...kept.keys()];
      if (state.unfolded || all.length <= FOLD) return all;
      const wanted = new Set();
      const around = (p, before, after) => { for (let q = p - before; q <= p + after; q++) wanted.add(q); };
      around(0, 0, 2);
      around(reading.n_keys - 1, 9, 0);
      for (let p = reading.needle[0]; p < reading.needle[1]; p++) wanted.add(p);
      around(reading.needle[0], 3, 0);
      around(reading.needle[1] - 1, 0, 3);
      [...kept.values()].sort((a, b) => Math.abs(b[kind]) - Math.abs(a[kind])).slice(0, PEAKS).forEach((k) => around(k.position, 2, 2));
      // A gap of a token or two takes more room than the tokens.
      const shown = all.filter((p) => wanted.has(p));
      shown.forEach((p, i) => { if (i && p - shown[i - 1] <= 3) around(p, p - shown[i - 1], 0); });
      return all.filter((p) => wanted.has(p));
    }

    function strip(reading, kept, kind) {
      const shown = unfoldedPositions(reading, kept, kind);
      const reach = Math.max(1e-12, ...[...kept.values()].map((k) => Math.abs(k[kind])));
      const nodes = [];
      let needle = null, last = -1;
      const gap = (n) => h("span", {class: "lx-gap"}, `\u2026 ${n.toLocaleString("en")} token${n === 1 ? "" : "s"} \u2026`);
      for (const position of shown) {
        const missing = position - last - 1;
        const inside = inNeedle(reading, position);
        if (missing > 0) { nodes.push(gap(missing)); needle = null; }
        last = position;
        const {attention, phi} = kept.get(position), value = kind === "phi" ? phi : attention;
        // Most attention may lie on one token that only serves as a rest place: the square root keeps the others visible.
        const share = kind === "phi" ? Math.abs(value) / reach : Math.sqrt(value / reach);
        const tone = kind === "attention" ? "read" : value < 0 ? "down" : "up";
        const token = h("span", {class: `lx-token lx-${tone}${position >= reading.n_prompt ? " lx-said" : ""}`,
          title: `position ${position}: attention ${number(attention)}, \u03c6 ${signed(phi)}${inside ? ", needle" : ""}`}, reading.text.get(position));
        token.style.setProperty("--share", `${(100 * share).toFixed(1)}%`);
        if (inside) {
          if (!needle) { needle = h("mark", {class: "lx-needle", title: "needle"}); nodes.push(needle); }
          needle.append(token);
        } else { needle = null; nodes.push(token); }
      }
      if (last < reading.n_keys - 1) nodes.push(gap(reading.n_keys - 1 - last));
      const said = reading.steps.map((step) => reading.generated[step]).join("");
      nodes.push(h("span", {class: "lx-answer", title: "what the head helps, or hinders, to say"}, `\u25b8 ${said}`));
      const strongest = [...kept.values()].sort((a, b) => Math.abs(b[kind]) - Math.abs(a[kind])).slice(0, 3).map((k) => `${oneLine(reading.text.get(k.position))} ${number(k[kind])}`);
      return h("div", {class: "lx-strip", role: "img", "aria-label": `${kind === "phi" ? "Contribution" : "Attention"} by token; strongest: ${strongest.join("; ")}`}, nodes);
    }

    function peaks(reading, kept, sign) {
      const best = [...kept.values()].filter((k) => sign * k.phi > 0).sort((a, b) => sign * (b.phi - a.phi)).slice(0, 10);
      const rows = best.map((k) => {
        const inside = inNeedle(reading, k.position);
        const before = reading.text.get(k.position - 1) || "";
        return h("tr", {}, h("td", {class: "lx-word"}, h("span", {class: "lx-before"}, oneLine(before)), h("b", {}, oneLine(reading.text.get(k.position))),
          inside ? h("span", {class: "lx-dot", title: "in the needle"}, ` ${DOT}`, h("span", {class: "lx-hidden"}, " in the needle")) : null),
          h("td", {}, signed(k.phi)), h("td", {}, number(k.attention, 2)));
      });
      const title = sign > 0 ? "Push the answer up" : "Push it down";
      return rows.length ? grid([`Token (${DOT} needle)`, "\u03c6", "Attention"], rows, title) : h("p", {class: "lx-note"}, `${title}: no position does.`);
    }

    function lens(reading, cell) {
      if (!reading.n_words) return null;
      const column = (title, ids, logits) => {
        const values = logits.row(cell);
        return h("div", {}, h("h5", {}, title), h("ol", {class: "lx-words"}, values.map((value, i) =>
          h("li", {}, h("b", {}, oneLine(reading.words[ids[cell * reading.n_words + i]])), " ", signed(value)))));
      };
      return h("div", {}, h("p", {class: "lx-note"}, "Its output alone, through the final norm and the unembedding at the first answer step: logits against the mean of the vocabulary."),
        h("div", {class: "lx-columns"}, column("Promotes", reading.promoted, reading.promoted_logits), column("Suppresses", reading.suppressed, reading.suppressed_logits)));
    }

    // --- two maps --------------------------------------------------------------------------------

    // Linear near 0, logarithmic beyond: the largest head would leave the others in one point.
    const squash = (values) => {
      const sizes = finite(values).map(Math.abs).filter((v) => v > 0).sort((a, b) => a - b);
      const unit = sizes.length ? sizes[Math.floor(sizes.length * 0.6)] || 1 : 1;
      return {at: (v) => Math.sign(v) * Math.log10(1 + Math.abs(v) / unit), unit, most: sizes[sizes.length - 1] || unit};
    };
    function squashedAxis(map, scale) {
      const marks = [0];
      for (let size = 10 ** Math.floor(Math.log10(scale.unit)); size <= scale.most * 1.001; size *= 10) {
        if (scale.at(size) > 0.1 * scale.at(scale.most)) marks.push(size, -size);
      }
      return {title: {text: label(map.name), standoff: 8}, zeroline: true, zerolinecolor: "rgba(128,128,128,.5)", gridcolor: "rgba(128,128,128,.18)",
        tickvals: marks.map(scale.at), ticktext: marks.map((v) => number(v, 2))};
    }
    let place = null;
    function moveMarker() {
      if (!place) return;
      const {x, y} = place();
      Plotly.restyle(against, {x: [x], y: [y]}, [1]);
    }
    function drawScatter() {
      if (!compare) return;
      const [x, y] = [state.x, state.y].map((wanted) => data.maps.find((map) => map.name === wanted));
      const cells = Array.from(x.mean.keys()).filter((cell) => Number.isFinite(x.mean[cell]) && Number.isFinite(y.mean[cell]));
      const [sx, sy] = [squash(x.mean), squash(y.mean)], colours = palette();
      const points = {type: "scatter", mode: "markers", x: cells.map((c) => sx.at(x.mean[c])), y: cells.map((c) => sy.at(y.mean[c])), customdata: cells,
        text: cells.map((c) => `<b>${name(Math.floor(c / heads), c % heads)}</b><br>${label(x.name)} ${number(x.mean[c])}<br>${label(y.name)} ${number(y.mean[c])}`),
        hovertemplate: "%{text}<extra></extra>", selectedpoints: state.brushed.size ? cells.map((c, i) => (state.brushed.has(c) ? i : -1)).filter((i) => i >= 0) : null,
        unselected: {marker: {opacity: 0.35}},
        marker: {size: 8, color: cells.map((c) => Math.floor(c / heads)), colorscale: "Cividis", cmin: 0, cmax: layers - 1, line: {width: 1, color: colours.card},
          colorbar: {title: {text: "layer", side: "top"}, thickness: 12, outlinewidth: 0}}};
      place = () => { const cell = state.head[0] * heads + state.head[1]; return {x: [sx.at(x.mean[cell])], y: [sy.at(y.mean[cell])]}; };
      const here = {type: "scatter", mode: "markers", ...place(), hoverinfo: "skip", showlegend: false,
        marker: {symbol: "circle-open", size: 16, color: colours.ink, line: {width: 3}}};
      Plotly.react(against, [points, here], {font: font(), paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: {l: 64, r: 24, t: 26, b: 50}, dragmode: "select", autosize: true, showlegend: false,
        hoverlabel: {bgcolor: colours.card, bordercolor: colours.line, font: {color: colours.ink}, align: "left"},
        xaxis: squashedAxis(x, sx), yaxis: squashedAxis(y, sy), selections: []}, config);
      against.setAttribute("aria-label", `Scatter of ${y.name} against ${x.name}, one point a head.`);
      listBrushed(x, y);
    }
    function brushTop(what) {
      const of = (wanted) => { const map = data.maps.find((m) => m.name === wanted); return ranks(map.mean).order.filter((c) => map.mean[c] !== 0).slice(0, TOP); };
      const [x, y] = [of(state.x), of(state.y)];
      brush({x, y, both: x.filter((c) => y.includes(c)), "": []}[what]);
    }
    function brush(cells) {
      state.brushed = new Set(cells);
      drawMap();
      drawScatter();
    }
    function listBrushed(x, y) {
      const cells = [...state.brushed].sort((a, b) => y.mean[b] - y.mean[a]);
      brushedList.replaceChildren(...(cells.length ? [h("span", {}, `${cells.length} marked: `),
        ...cells.slice(0, 40).map((c) => h("button", {type: "button", onclick: () => choose([Math.floor(c / heads), c % heads])}, name(Math.floor(c / heads), c % heads)))] : []));
    }

    // --- what happens ----------------------------------------------------------------------------

    function drawVariants() {
      const those = data.maps.filter((map) => map.detector === state.detector && map.variant);
      variants.replaceChildren();
      if (those.length > 1) {
        if (!those.some((map) => map.variant === state.variant)) state.variant = those[0].variant;
        variants.append(choice("\u03c6 as in", those.map((map) => [map.variant, map.variant]), "variant", (value) => { state.variant = value; update({panel: true}); }));
      }
    }
    function drawPanels() {
      const shown = [panel(state.head, false)];
      if (state.pinned) shown.push(panel(state.pinned, true));
      panels.parentNode.classList.toggle("lx-two", shown.length > 1);
      panels.replaceChildren(...shown);
    }
    function update({controls: also = false, map = true, panel: own = false}) {
      if (also) drawVariants();
      if (map) drawMap();
      if (own || also || map) drawPanels();
    }
    function choose(head, tell = true) {
      state.head = head;
      const shown = view(), {order, of} = ranks(shown.values), cell = cellOf(shown, head);
      Plotly.relayout(plot, {shapes: outlines(shown, order)});
      drawPanels();
      moveMarker();
      live.textContent = `${name(head[0], head[1])}: ${shown.map.name} ${number(shown.values[cell])}, rank ${of.get(cell) || "none"} of ${order.length}`;
      if (tell) onSelect(head);
    }
    function pin(head) {
      state.pinned = head;
      const shown = view();
      Plotly.relayout(plot, {shapes: outlines(shown, ranks(shown.values).order)});
      drawPanels();
    }
    function press(event) {
      const shown = view(), {order} = ranks(shown.values);
      const cell = cellOf(shown, state.head), layer = Math.floor(cell / shown.columns), column = cell % shown.columns;
      const place = order.indexOf(cell);
      const to = (l, c) => headOf(shown, Math.min(Math.max(l, 0), layers - 1) * shown.columns + Math.min(Math.max(c, 0), shown.columns - 1));
      const moves = {
        ArrowUp: () => to(layer + 1, column), ArrowDown: () => to(layer - 1, column), ArrowLeft: () => to(layer, column - 1), ArrowRight: () => to(layer, column + 1),
        PageUp: () => to(layer + 5, column), PageDown: () => to(layer - 5, column), Home: () => to(layer, 0), End: () => to(layer, shown.columns - 1),
        n: () => headOf(shown, order[Math.min(place + 1, order.length - 1)] ?? cell), p: () => headOf(shown, order[Math.max(place - 1, 0)] ?? cell),
      };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Enter") { event.preventDefault(); pin(state.pinned && state.pinned.join() === state.head.join() ? null : state.head); return; }
      const move = moves[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!move) return;
      Plotly.Fx.unhover(plot);
      event.preventDefault();
      event.stopPropagation();
      choose(move());
    }
    const redraw = () => { root.dataset.theme = isDark() ? "dark" : "light"; drawMap(); drawScatter(); };

    root.dataset.theme = isDark() ? "dark" : "light";
    update({controls: true});
    drawScatter();
    plot.on("plotly_click", ({points: [point]}) => { if (point.curveNumber === 0) { choose(headOf(view(), point.y * view().columns + point.x)); plot.focus({preventScroll: true}); } });
    plot.addEventListener("keydown", press);
    if (compare) {
      against.on("plotly_click", ({points: [point]}) => { if (point.curveNumber === 0) choose([Math.floor(point.customdata / heads), point.customdata % heads]); });
      // Drawing anew also tells of a selection, an empty one without a range.
      against.on("plotly_selected", (event) => { if (event && event.range) brush(event.points.filter((p) => p.curveNumber === 0).map((p) => p.customdata)); });
      against.on("plotly_deselect", () => brush([]));
    }
    const media = matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", redraw);
    const watcher = new MutationObserver(redraw);
    watcher.observe(document.body, {attributes: true, attributeFilter: ["data-jp-theme-light", "class"]});
    const resize = new ResizeObserver(() => { for (const node of [plot, against]) if (node.offsetParent) Plotly.Plots.resize(node); });
    resize.observe(root);
    return {
      choose: (head) => choose(head, false),
      redraw,
      destroy() { media.removeEventListener("change", redraw); watcher.disconnect(); resize.disconnect(); Plotly.purge(plot); Plotly.purge(against); },
    };
  }
  return {mount};
})();
