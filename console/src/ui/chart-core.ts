// uPlot with our colours. Loaded on demand.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface ChartSeries {
  label: string;
  /** Which of the colours of charts, from 1. */
  colour: number;
  format: (value: number) => string;
  fill?: boolean;
  /** The value at the top of a chart where nothing is higher. */
  top?: number;
}

export interface ChartHandle {
  setData(times: number[], values: (number | null)[][]): void;
  /** Shows everything again. */
  showAll(): void;
  destroy(): void;
}

const HEIGHT = 168;
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

/** A small box beside the pointer with the values there. */
function tooltipPlugin(series: ChartSeries[]): uPlot.Plugin {
  const box = document.createElement("div");
  box.className = "chart-tip";
  return {
    hooks: {
      init: (plot) => {
        plot.over.append(box);
        plot.over.addEventListener("mouseleave", () => { box.hidden = true; });
        box.hidden = true;
      },
      setCursor: (plot) => {
        const { idx, left } = plot.cursor;
        const time = idx === null || idx === undefined ? undefined : plot.data[0][idx];
        if (time === undefined || idx === null || idx === undefined) {
          box.hidden = true;
          return;
        }
        const lines = series.map((each, at) => {
          const value = plot.data[at + 1]?.[idx];
          return `${each.label}  ${value === null || value === undefined ? "–" : each.format(value)}`;
        });
        box.textContent = [new Date(time * 1000).toLocaleTimeString(undefined, { hourCycle: "h23" }), ...lines].join("\n");
        box.hidden = false;
        const right = (left ?? 0) > plot.over.clientWidth / 2;
        box.style.left = right ? "" : `${(left ?? 0) + 12}px`;
        box.style.right = right ? `${plot.over.clientWidth - (left ?? 0) + 12}px` : "";
      },
    },
  };
}

/** The places of values that have a gap on both sides. */
function findLonely(plot: uPlot, at: number): number[] {
  const values = plot.data[at] ?? [];
  const isGap = (place: number) => values[place] === null || values[place] === undefined;
  return [...values.keys()].filter((place) => !isGap(place) && isGap(place - 1) && isGap(place + 1));
}

export function createChart(host: HTMLElement, series: ChartSeries[], onZoom: (zoomed: boolean) => void): ChartHandle {
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  const grid = { stroke: colour("--line"), width: 1 };
  const axis = { stroke: colour("--faint"), grid, ticks: { show: false }, font: `11px ${colour("--font")}` };
  const first = series[0];
  const plot = new uPlot(
    {
      width: Math.max(host.clientWidth, 100),
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, drag: { x: true, y: false }, points: { size: 6 } },
      scales: { y: { range: (_plot, _low, high) => [0, Math.max((high ?? 0) * 1.15, first?.top ?? 1)] } },
      axes: [
        { ...axis, space: 70, size: 30, values: (_plot, ticks) => ticks.map((tick) => CLOCK.format(tick * 1000)) },
        { ...axis, size: 58, space: 36, values: (_plot, ticks) => ticks.map((tick) => (tick === 0 ? "0" : first?.format(tick) ?? String(tick))) },
      ],
      series: [
        {},
        ...series.map((each) => ({
          label: each.label,
          stroke: colour(`--chart-${each.colour}`),
          width: 1.6,
          // A value between two gaps is no line.
          points: { show: true, size: 5, width: 0, fill: colour(`--chart-${each.colour}`), filter: findLonely },
          ...(each.fill === true ? { fill: `${colour(`--chart-${each.colour}`)}22` } : {}),
        })),
      ],
      plugins: [tooltipPlugin(series)],
    },
    [[], ...series.map(() => [])],
    host,
  );
  let zoomed = false;
  const note = (now: boolean) => {
    zoomed = now;
    onZoom(now);
  };
  plot.over.addEventListener("dblclick", () => note(false));
  plot.over.addEventListener("mouseup", () => note(zoomed || plot.select.width > 2));
  const watch = new ResizeObserver(() => plot.setSize({ width: Math.max(host.clientWidth, 100), height: HEIGHT }));
  watch.observe(host);
  return {
    setData(times, values) {
      // Somebody who zoomed in keeps what they look at.
      plot.setData([times, ...values] as uPlot.AlignedData, !zoomed);
      if (zoomed) plot.redraw();
    },
    showAll() {
      note(false);
      plot.setData(plot.data, true);
    },
    destroy() {
      watch.disconnect();
      plot.destroy();
    },
  };
}
