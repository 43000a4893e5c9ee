import Perplexity from '@perplexity-ai/perplexity_ai';

const client = new Perplexity();

const response = await client.responses.create({
  model: 'openai/gpt-5.5',
  input: 'Write a CSV of the first ten Fibonacci numbers, each with its square.',
  tools: [{ type: 'sandbox' as const }],
  instructions: 'Compute the values in the sandbox before you answer.',
});

console.log(JSON.stringify({ response, text: response.output_text }));
