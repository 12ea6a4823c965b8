// Logarithms of the probabilities that node-llama-cpp gives to all tokens, after each of the last ROWS ids, as JSON:
// peer_logits.mjs ENTRY MODEL IDS ROWS
import {pathToFileURL} from "node:url";

const [entry, modelPath, text, rows] = process.argv.slice(2);
const ids = text.split(",").map(Number), first = ids.length - Number(rows);
const {getLlama} = await import(pathToFileURL(entry).href);

const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
const model = await llama.loadModel({modelPath});
const sequence = (await model.createContext({contextSize: ids.length + 16})).getSequence();
const wanted = {generateNext: {probabilities: true, options: {temperature: 1, topK: 0, topP: 1, minP: 0}}};
const found = await sequence.controlledEvaluate(ids.map((id, i) => i < first ? id : [id, wanted]));
console.log(JSON.stringify({rows: found.slice(first).map(({next}) => {
    const row = new Array(next.probabilities.size);
    for (const [id, p] of next.probabilities) row[id] = Math.log(p);
    return row;
})}));
await llama.dispose();
process.exit(0);
