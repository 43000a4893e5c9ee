import Perplexity from '@perplexity-ai/perplexity_ai';

const client = new Perplexity();

let response = await client.responses.create({
  model: 'openai/gpt-5.5',
  input: 'Write a CSV of the first ten Fibonacci numbers, each with its square.',
  tools: [{ type: 'sandbox' as const }],
  background: true,
});
const begun = response.status;

while (response.status === 'queued' || response.status === 'in_progress') {
  await new Promise((resolve) => setTimeout(resolve, 100));
  response = await client.responses.retrieve(response.id);
}

console.log(JSON.stringify({ response, text: response.output_text, begun }));
