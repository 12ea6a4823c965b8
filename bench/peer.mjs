// One speed of node-llama-cpp as JSON: peer.mjs ENTRY MODEL prefill|decode TOKENS DEPTH SEQUENCES THREADS
import {pathToFileURL} from "node:url";

const [entry, modelPath, kind, ...sizes] = process.argv.slice(2);
const [nTokens, depth, nSequences, threads] = sizes.map(Number);
const {getLlama} = await import(pathToFileURL(entry).href);

const llama = await getLlama({gpu: false, build: "never", maxThreads: threads, logLevel: "error"});
const model = await llama.loadModel({modelPath});
const context = await model.createContext({
    sequences: nSequences, contextSize: depth + nTokens + 16, threads, batchSize: 512
});
const sequences = Array.from({length: nSequences}, () => context.getSequence());
const ids = (n, seed) => Array.from({length: n}, (_, i) => (i * 7919 + 13 + seed * 104729) % 30000);

async function timePrefill() {
    const all = ids(depth + nTokens, 0), [sequence] = sequences;
    await sequence.clearHistory();
    if (depth) await sequence.evaluateWithoutGeneratingNewTokens(all.slice(0, depth));
    const start = performance.now();
    await sequence.evaluateWithoutGeneratingNewTokens(all.slice(depth));
    return nTokens / (performance.now() - start) * 1e3;
}

// Greedy. The clock runs from where all sequences have their first token, for which the prompt is read, to where one ends.
async function timeDecode(n, past) {
    let nBegun = 0, nTold = 0, start = 0, end = 0;
    await Promise.all(sequences.map(async (sequence, i) => {
        let own = 0;
        await sequence.clearHistory();
        for await (const _ of sequence.evaluate(ids(past + 1, i), {temperature: 0, yieldEogToken: true})) {
            if (end) break;
            if (nBegun === nSequences) nTold++, own++;
            else if (own++ === 0 && ++nBegun === nSequences) start = performance.now(), own = 0;
            if (nBegun === nSequences && own === n) end = performance.now();
        }
    }));
    return nTold / (end - start) * 1e3;
}

const time = kind === "prefill" ? timePrefill : () => timeDecode(nTokens, depth);
await (kind === "prefill" && depth === 0 ? timePrefill() : timeDecode(4, 0)); // warms up
console.log(JSON.stringify({tps: await time()}));
await llama.dispose();
process.exit(0);
