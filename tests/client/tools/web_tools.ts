// Web tools with the public TypeScript client. The compiler checks every field that is used here
// against the types of the package; the program checks the values.
import Perplexity from '@perplexity-ai/perplexity_ai';

declare const process: { env: Record<string, string> };

function check(condition: boolean, what: unknown): void {
  if (!condition) throw new Error(JSON.stringify(what));
}

function same(found: unknown, expected: unknown): void {
  check(JSON.stringify(found) === JSON.stringify(expected), { found, expected });
}

const model = process.env.CLOCHE_MODEL;
const page = `${process.env.CLOCHE_WEB}/page`;
const client = new Perplexity({ maxRetries: 0 });

const calls = (name: string, args: object) => ({ calls: [{ name, arguments: args }] });
const input = JSON.stringify([
  calls('web_search', { query: 'cats' }),
  calls('fetch_url', { urls: [page] }),
  calls('people_search', { query: 'ada' }),
  { text: 'done' },
]);
const tools = [
  { type: 'web_search' as const },
  { type: 'fetch_url' as const },
  { type: 'people_search' as const },
];

const response = await client.responses.create({ model, input, tools });
same(response.output_text, 'done');
const titles: string[] = [];
for (const item of response.output) {
  if (item.type === 'search_results') {
    same(item.results[0].id, 1);
    check(item.results[0].url.startsWith('https://'), item);
    same(item.queries?.length, 1);
    titles.push(item.results[0].title);
  } else if (item.type === 'fetch_url_results') {
    same(item.contents[0].url, page);
    check(item.contents[0].snippet.includes('Text of the page'), item);
    titles.push(item.contents[0].title);
  }
}
same(titles, ['Result 1', 'Page /page', 'Ada Lovelace']);

const used = response.usage!.tool_calls_details!;
const counts = Object.entries(used).map(([name, detail]) => `${name} ${detail.invocation}`);
same(counts.sort(), ['fetch_url 1', 'people_search 1', 'web_search 1']);
check(Math.abs(response.usage!.cost!.tool_calls_cost! - 0.0155) < 1e-9, response.usage);

const seen: string[] = [];
const stream = await client.responses.create({ model, input, tools, stream: true });
for await (const event of stream) {
  if (event.type === 'response.reasoning.search_results') {
    seen.push(event.results[0].title);
  } else if (event.type === 'response.reasoning.fetch_url_results') {
    seen.push(event.contents[0].title);
  } else if (event.type === 'response.reasoning.search_queries') {
    seen.push(event.queries[0]);
  } else if (event.type === 'response.reasoning.fetch_url_queries') {
    seen.push(event.urls[0]);
  }
}
same(seen, ['cats', 'Result 1', page, 'Page /page', 'ada', 'Ada Lovelace']);
console.log('every item is typed');
