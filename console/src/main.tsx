// Starts the console.
import { render } from "preact";
import { App } from "./app";
import { startEvents } from "./events";
import { startRouter } from "./router";
import { startTheme } from "./theme";
import "./style/base.css";
import "./style/shell.css";
import "./style/parts.css";
import "./style/pages.css";

startTheme();
startRouter();
startEvents();
const root = document.getElementById("app");
if (root !== null) render(<App />, root);
