// Speeds of node-llama-cpp as JSON: peer.mjs ENTRY MODEL PROMPT TOKENS DEPTHS THREADS
import {pathToFileURL} from "node:url";

const [entry, modelPath, prompt, tokens, depths, threads] = process.argv.slice(2);
const nPrompt = Number(prompt), nTokens = Number(tokens), nThreads = Number(threads);
const atDepths = depths.split(",").map(Number);
const {getLlama} = await import(pathToFileURL(entry).href);

const llama = await getLlama({gpu: false, build: "never", maxThreads: nThreads, logLevel: "error"});
const model = await llama.loadModel({modelPath});
const context = await model.createContext({
    contextSize: Math.max(...atDepths) + Math.max(nPrompt, nTokens + 2), threads: nThreads, batchSize: 512
});
const sequence = context.getSequence();
const ids = Array.from({length: Math.max(nPrompt, ...atDepths) + 1}, (_, i) => (i * 7919 + 13) % 30000);

async function timePrefill() {
    await sequence.clearHistory();
    const start = performance.now();
    await sequence.evaluateWithoutGeneratingNewTokens(ids.slice(0, nPrompt));
    return nPrompt / (performance.now() - start) * 1e3;
}

// Greedy; the first token, for which the prompt is read, is not counted.
async function timeDecode(depth) {
    await sequence.clearHistory();
    let n = 0, start = 0;
    for await (const _ of sequence.evaluate(ids.slice(0, depth + 1), {temperature: 0, yieldEogToken: true})) {
        if (n === 0) start = performance.now();
        if (n++ === nTokens) break;
    }
    return (n - 1) / (performance.now() - start) * 1e3;
}

const speeds = {};
await timePrefill(); // warms up
speeds.prefill = await timePrefill();
for (const depth of atDepths) speeds[depth ? `decode at ${depth}` : "decode"] = await timeDecode(depth);
console.log(JSON.stringify(speeds));
await llama.dispose();
process.exit(0);
