import { where } from './beside.js';
export default () => [where, import.meta.url, import.meta.filename];
