(() => {
  "use strict";
  const config = JSON.parse(document.getElementById("config").textContent);
  const darkPage = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const PRINT = {width: 680, height: 480};
  const drawn = new Map();

  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const isDark = () => darkPage.matches && !("printing" in root.dataset);

  // Figures come with light colours; everything that depends on the page's theme is put in here.
  function themed() {
    const ink = color("--ink");
    return {
      "font.color": ink,
      "paper_bgcolor": "rgba(0,0,0,0)",
      "plot_bgcolor": "rgba(0,0,0,0)",
      "hoverlabel.bgcolor": color("--card"),
      "hoverlabel.bordercolor": color("--line"),
      "hoverlabel.font.color": ink,
      "modebar.color": color("--muted"),
      "modebar.activecolor": ink,
    };
  }

  function restyle(plot) {
    const {dark, light} = drawn.get(plot);
    const scale = isDark() ? dark : light;
    if (scale) Plotly.update(plot, {colorscale: [scale]}, themed(), [0]);
    else Plotly.relayout(plot, themed());
  }

  function draw(plot) {
    if (drawn.has(plot)) return;
    const {data, layout} = JSON.parse(document.getElementById("figure-" + plot.dataset.figure).textContent);
    const dark = layout.meta && layout.meta.dark_colorscale;
    drawn.set(plot, {light: dark && data[0].colorscale, dark, height: layout.height});
    // A figure has a width that suits it, but gives way on a narrow page.
    if (layout.width) plot.style.maxWidth = layout.width + "px";
    delete layout.width;
    plot.style.height = layout.height + "px";
    layout.autosize = true;
    Plotly.newPlot(plot, data, layout, config);
    restyle(plot);
    if (explorer) plot.on("plotly_click", ({points: [point]}) => {
      const head = /^(?:<b>)?L(\d+)H(\d+)\b/.exec(point.customdata);
      if (!head) return;
      explorer.choose([Number(head[1]), Number(head[2])]);
      place.scrollIntoView({behavior: "smooth"});
    });
  }

  function resize(plot, width, height) {
    plot.style.height = height + "px";
    Plotly.relayout(plot, {width, height, autosize: width === undefined});
  }

  const restyleAll = () => drawn.forEach((_, plot) => restyle(plot));
  const visible = (plot) => plot.offsetParent !== null;

  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const place = document.getElementById("explorer");
  const explorer = data && locosExplorer.mount(place, data, {Plotly});
  const best = document.getElementById("best");
  const openBest = () => { if (location.hash === "#best") best.open = true; };
  addEventListener("hashchange", openBest);
  openBest();

  // One after the other, so that the page answers while they are drawn.
  const waiting = [...document.querySelectorAll(".plot")];
  const drawNext = () => {
    const plot = waiting.shift();
    if (!plot) return;
    draw(plot);
    setTimeout(drawNext);
  };
  setTimeout(drawNext);

  document.querySelectorAll("input[name=state]").forEach((input) => input.addEventListener("change", () => {
    document.querySelectorAll(".answers tbody tr").forEach((row) => {
      row.hidden = input.value !== "all" && row.dataset.state !== input.value;
    });
  }));

  darkPage.addEventListener("change", restyleAll);
  // Paper is light and narrow; what is hidden stays hidden, so the chosen detector is printed.
  addEventListener("beforeprint", () => {
    while (waiting.length) draw(waiting.shift());
    root.dataset.printing = "";
    best.dataset.open = best.open ? "yes" : "";
    best.open = true;
    restyleAll();
    if (explorer) explorer.redraw();
    drawn.forEach((_, plot) => {
      if (!visible(plot)) return;
      const {width, height} = plot.getBoundingClientRect();
      resize(plot, Math.min(width, PRINT.width), Math.min(height, PRINT.height));
    });
  });
  addEventListener("afterprint", () => {
    delete root.dataset.printing;
    best.open = best.dataset.open === "yes";
    restyleAll();
    if (explorer) explorer.redraw();
    drawn.forEach((known, plot) => {
      if (visible(plot)) resize(plot, undefined, known.height);
    });
  });
})();
