// A chart over time, loaded on demand. Dragging zooms; a button or a double click shows everything.
import { useEffect, useRef, useState } from "preact/hooks";
import type { ChartHandle, ChartSeries } from "./chart-core";

export interface ChartProps {
  label: string;
  times: number[];
  series: ChartSeries[];
  values: (number | null)[][];
  theme: string;
}

export function Chart(props: ChartProps) {
  const host = useRef<HTMLDivElement>(null);
  const handle = useRef<ChartHandle | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [zoomed, setZoomed] = useState(false);
  useEffect(() => {
    let gone = false;
    import("./chart-core").then(({ createChart }) => {
      if (gone || host.current === null) return;
      handle.current = createChart(host.current, latest.current.series, setZoomed);
      handle.current.setData(latest.current.times, latest.current.values);
    });
    return () => {
      gone = true;
      handle.current?.destroy();
      handle.current = null;
      setZoomed(false);
    };
  }, [props.theme, props.series.map((each) => each.label).join()]);
  useEffect(() => handle.current?.setData(props.times, props.values), [props.times, props.values]);
  const latestValues = props.series.map((series, at) => {
    const values = props.values[at] ?? [];
    const last = values.findLast((value) => value !== null);
    return `${series.label} ${last === undefined || last === null ? "none" : series.format(last)}`;
  });
  return (
    <div class="chart-frame">
      <div ref={host} class="chart" role="img" title="Drag to zoom in" aria-label={`${props.label}: ${latestValues.join(", ")}`} />
      {zoomed && <button type="button" class="button small chart-all" onClick={() => handle.current?.showAll()}>Show all of {props.label.toLowerCase()}</button>}
    </div>
  );
}
