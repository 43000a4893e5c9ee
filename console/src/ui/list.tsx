// A list as a table, in its four forms: loading, failed, empty, and with rows.
import type { ComponentChildren } from "preact";
import type { IconName } from "./icons";
import { Empty, Failed, Loading } from "./parts";
import type { Query } from "./query";

export interface Column<T> {
  title: string;
  cell: (item: T) => ComponentChildren;
  end?: boolean;
  primary?: boolean;
}

interface ListProps<T> {
  label: string;
  query: Query<T[]>;
  columns: Column<T>[];
  keyOf: (item: T) => string;
  actions?: (item: T) => ComponentChildren;
  empty: { icon: IconName; title: string; text: ComponentChildren; action?: ComponentChildren };
  foot?: ComponentChildren;
}

export function List<T>({ label, query, columns, keyOf, actions, empty, foot }: ListProps<T>) {
  const items = query.data;
  return (
    <section class="card" aria-label={label} aria-busy={query.loading}>
      {query.error !== null && <Failed error={query.error} retry={query.reload} />}
      {items === undefined && query.error === null && <Loading label={`Loading ${label.toLowerCase()}`} />}
      {items !== undefined && items.length === 0 && query.error === null && (
        <Empty icon={empty.icon} title={empty.title}>
          <p>{empty.text}</p>
          {empty.action}
        </Empty>
      )}
      {items !== undefined && items.length > 0 && (
        <div class="table-wrap">
          <table class="table cards">
            <thead>
              <tr>
                {columns.map((column) => <th key={column.title} scope="col" class={column.end === true ? "end" : ""}>{column.title}</th>)}
                {actions !== undefined && <th scope="col"><span class="visually-hidden">Actions</span></th>}
              </tr>
            </thead>
            <tbody>
              {items.map((item) => (
                <tr key={keyOf(item)}>
                  {columns.map((column) => (
                    <td key={column.title} data-label={column.primary === true ? undefined : column.title}
                      class={`${column.end === true ? "end number" : ""} ${column.primary === true ? "primary-cell wrap" : ""}`}>
                      {column.cell(item)}
                    </td>
                  ))}
                  {actions !== undefined && <td class="end actions-cell"><span class="row">{actions(item)}</span></td>}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {foot}
    </section>
  );
}
