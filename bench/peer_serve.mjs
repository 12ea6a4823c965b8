// Throughput of several sequences of node-llama-cpp at once, as JSON: peer_serve.mjs ENTRY MODEL PROMPT TOKENS COUNTS THREADS
import {pathToFileURL} from "node:url";

const [entry, modelPath, prompt, tokens, counts, threads] = process.argv.slice(2);
const nPrompt = Number(prompt), nTokens = Number(tokens), nThreads = Number(threads);
const atOnce = counts.split(",").map(Number);
const {getLlama} = await import(pathToFileURL(entry).href);

const llama = await getLlama({gpu: false, build: "never", maxThreads: nThreads, logLevel: "error"});
const model = await llama.loadModel({modelPath});
const most = Math.max(...atOnce);
const context = await model.createContext({
    sequences: most, contextSize: nPrompt + nTokens + 8, threads: nThreads, batchSize: 512
});
const sequences = Array.from({length: most}, () => context.getSequence());
const ids = (seed) => Array.from({length: nPrompt}, (_, i) => (i * 7919 + 13 + seed * 104729) % 30000);

async function answer(sequence, i) {
    await sequence.clearHistory();
    let n = 0;
    for await (const _ of sequence.evaluate(ids(i), {temperature: 0, yieldEogToken: true}))
        if (++n === nTokens) break;
}

async function throughput(n) {
    const start = performance.now();
    await Promise.all(sequences.slice(0, n).map(answer));
    return n * nTokens / (performance.now() - start) * 1e3;
}

const speeds = {};
await throughput(1); // warms up
for (const n of atOnce) speeds[n] = await throughput(n);
console.log(JSON.stringify(speeds));
await llama.dispose();
process.exit(0);
