// A component that is rendered again only if a property changed.
import { Component, type ComponentType, type FunctionComponent, type VNode } from "preact";

export function memo<P extends object>(Inner: FunctionComponent<P>): ComponentType<P> {
  return class Memo extends Component<P> {
    override shouldComponentUpdate(next: P): boolean {
      const names = new Set([...Object.keys(next), ...Object.keys(this.props)]) as Set<keyof P & string>;
      for (const name of names) {
        if (next[name] !== (this.props as P)[name]) return true;
      }
      return false;
    }
    render(): VNode {
      return <Inner {...(this.props as P)} />;
    }
  };
}
