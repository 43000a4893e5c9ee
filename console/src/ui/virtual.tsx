// A long list of which only the visible rows are in the document.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

interface VirtualProps<T> {
  items: T[];
  rowHeight: number;
  keyOf: (item: T) => string;
  row: (item: T, at: number) => ComponentChildren;
  label: string;
  /** Called when the end comes near. */
  onEnd: () => void;
  onTop?: (atTop: boolean) => void;
  foot?: ComponentChildren;
  header: ComponentChildren;
}

const OVERSCAN = 12;
// Browsers limit the height of an element; above this the scale of the scroll bar changes.
const MOST_PIXELS = 12_000_000;

export function VirtualRows<T>(props: VirtualProps<T>) {
  const scroller = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  useLayoutEffect(() => {
    const element = scroller.current;
    if (element === null) return;
    const watch = new ResizeObserver(() => setHeight(element.clientHeight));
    watch.observe(element);
    setHeight(element.clientHeight);
    return () => watch.disconnect();
  }, []);
  const total = Math.min(props.items.length * props.rowHeight, MOST_PIXELS);
  const first = Math.max(0, Math.floor(top / props.rowHeight) - OVERSCAN);
  const last = Math.min(props.items.length, Math.ceil((top + height) / props.rowHeight) + OVERSCAN);
  useEffect(() => {
    if (last >= props.items.length - 40) props.onEnd();
  }, [last, props.items.length]);
  const visible = props.items.slice(first, last);
  return (
    <div
      class="virtual"
      ref={scroller}
      role="region"
      aria-label={`${props.label}, scrolling`}
      tabIndex={0}
      onScroll={(event) => {
        setTop(event.currentTarget.scrollTop);
        props.onTop?.(event.currentTarget.scrollTop < 8);
      }}
    >
      <div role="table" aria-label={props.label} aria-rowcount={-1}>
        <div role="rowgroup" class="virtual-head">{props.header}</div>
        <div role="rowgroup" class="virtual-body" style={{ height: `${total}px` }}>
          {visible.map((item, index) => (
            <div
              role="row"
              class="virtual-row"
              key={props.keyOf(item)}
              aria-rowindex={first + index + 2}
              style={{ height: `${props.rowHeight}px`, transform: `translateY(${(first + index) * props.rowHeight}px)` }}
            >
              {props.row(item, first + index)}
            </div>
          ))}
        </div>
      </div>
      {props.foot}
    </div>
  );
}
