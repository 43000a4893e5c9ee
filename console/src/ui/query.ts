// Loading something for a page: its value, its failure, and whether it is under way.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";

export interface Query<T> {
  data: T | undefined;
  error: Error | null;
  loading: boolean;
  reload: () => void;
}

/** Loads when a dependency changes. A late answer to an older question is dropped. */
export function useQuery<T>(load: (signal: AbortSignal) => Promise<T>, dependencies: unknown[]): Query<T> {
  const [state, setState] = useState<{ data: T | undefined; error: Error | null; loading: boolean }>({
    data: undefined,
    error: null,
    loading: true,
  });
  const [turn, setTurn] = useState(0);
  const latest = useRef(load);
  latest.current = load;
  const key = JSON.stringify(dependencies);
  const shownKey = useRef(key);
  useEffect(() => {
    const stop = new AbortController();
    const isNew = shownKey.current !== key;
    shownKey.current = key;
    setState((old) => ({ data: isNew ? undefined : old.data, error: null, loading: true }));
    latest.current(stop.signal).then(
      (data) => {
        if (!stop.signal.aborted) setState({ data, error: null, loading: false });
      },
      (error: Error) => {
        if (!stop.signal.aborted) setState((old) => ({ data: old.data, error, loading: false }));
      },
    );
    return () => stop.abort();
  }, [key, turn]);
  const reload = useCallback(() => setTurn((n) => n + 1), []);
  return { ...state, reload };
}

/** Loads again when a value changes; what is shown stays until the new answer is here. */
export function useReload(value: unknown, reload: () => void): void {
  const shown = useRef(value);
  useEffect(() => {
    if (shown.current === value) return;
    shown.current = value;
    reload();
  }, [value]);
}
