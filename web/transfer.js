// Export and import of conversations. An imported file is hostile: every field is checked and
// copied by name, sizes are limited, and nothing that is there already is overwritten. Pure.

import { newChat } from './chat.js';

export const LIMITS = {
  file: 64 << 20,
  chats: 2000,
  nodes: 5000,
  text: 2 << 20,
  images: 8,
  image: 16 << 20,
  calls: 64,
  probs: 65536
};
const IMAGE = /^data:image\/(?:png|jpeg|webp);base64,[A-Za-z0-9+/]+={0,2}$/;
const ROLES = new Set(['user', 'assistant', 'tool']);

export function exportText(chats) {
  return JSON.stringify({ format: 'quern-conversations', version: 1, conversations: chats });
}

// The conversations in the text, with new ids. Throws an Error that says what is wrong and where.
export function importText(text) {
  if (text.length > LIMITS.file) fail('the file', `is ${text.length} bytes long; at most ${LIMITS.file} are read`);
  let file;
  try {
    file = JSON.parse(text);
  } catch (error) {
    fail('the file', `is not JSON (${error.message.slice(0, 120)})`);
  }
  if (!isObject(file) || file.format !== 'quern-conversations') fail('the file', 'is not an export of this page');
  if (file.version !== 1) fail('the file', `has version ${show(file.version)}; this page reads version 1`);
  return list(file.conversations, 'conversations', LIMITS.chats).map(readChat);
}

const isImage = url => typeof url === 'string' && url.length <= LIMITS.image && IMAGE.test(url);

function readChat(from, index) {
  const where = `conversation ${index + 1}`;
  if (!isObject(from)) fail(where, 'is not an object');
  const chat = newChat();
  chat.title = string(from.title, `${where}: title`, 200) || chat.title;
  chat.named = from.named === true;
  chat.created = time(from.created);
  chat.updated = time(from.updated);
  for (const name of ['system', 'schema', 'tools']) chat[name] = string(from[name], `${where}: ${name}`, LIMITS.text);
  chat.nodes = list(from.nodes, `${where}: nodes`, LIMITS.nodes).map((node, id) =>
    readNode(node, id, `${where}, message ${id + 1}`)
  );
  chat.from = Number.isInteger(from.from) && from.from >= 0 && from.from < chat.nodes.length ? from.from : -1;
  chat.chosen = readChosen(from.chosen, chat.nodes);
  return chat;
}

function readChosen(from, nodes) {
  const chosen = {};
  if (!isObject(from)) return chosen;
  for (const node of nodes)
    if (Object.hasOwn(from, node.parent) && from[node.parent] === node.id) chosen[node.parent] = node.id;
  return chosen;
}

function readNode(from, id, where) {
  if (!isObject(from)) fail(where, 'is not an object');
  if (!ROLES.has(from.role)) fail(`${where}: role`, `is ${show(from.role)}; expected user, assistant or tool`);
  if (!Number.isInteger(from.parent) || from.parent < -1 || from.parent >= id) {
    fail(`${where}: parent`, `is ${show(from.parent)}; expected -1 to ${id - 1}`);
  }
  const node = {
    id,
    parent: from.parent,
    role: from.role,
    text: string(from.text, `${where}: text`, LIMITS.text),
    time: time(from.time)
  };
  READ[from.role](node, from, where);
  return node;
}

const READ = {
  user(node, from, where) {
    node.images = list(from.images ?? [], `${where}: images`, LIMITS.images);
    for (const url of node.images)
      if (!isImage(url)) fail(`${where}: images`, 'hold something that is not a PNG, JPEG or WebP image');
  },
  tool(node, from, where) {
    node.call = string(from.call, `${where}: call`, 200);
    node.name = string(from.name, `${where}: name`, 200);
  },
  assistant(node, from, where) {
    node.reasoning = string(from.reasoning, `${where}: reasoning`, LIMITS.text);
    node.thought = number(from.thought);
    node.model = string(from.model, `${where}: model`, 400);
    node.finish = string(from.finish, `${where}: finish`, 40);
    node.calls = list(from.calls ?? [], `${where}: calls`, LIMITS.calls).map(call => ({
      id: string(call && call.id, `${where}: calls`, 200),
      name: string(call && call.name, `${where}: calls`, 200),
      arguments: string(call && call.arguments, `${where}: calls`, LIMITS.text)
    }));
    node.probs = list(from.probs ?? [], `${where}: probs`, LIMITS.probs).map(entry => readProb(entry, where));
    node.stats = {};
    if (isObject(from.stats))
      for (const name of STATS) if (Number.isFinite(from.stats[name])) node.stats[name] = from.stats[name];
  }
};

const STATS = ['first', 'speed', 'tokens', 'prompt', 'cached', 'thinking', 'seed'];

function readProb(entry, where) {
  if (!Array.isArray(entry) || !Array.isArray(entry[2]) || entry[2].length > 20)
    fail(`${where}: probs`, 'are not as this page writes them');
  const pair = p => [string(p && p[0], `${where}: probs`, 400), Math.min(0, number(p && p[1]))];
  return [...pair(entry), entry[2].map(pair)];
}

// ---- values ----

const isObject = value => typeof value === 'object' && value !== null && !Array.isArray(value);
const show = value => String(JSON.stringify(value)).slice(0, 40);
const number = value => (Number.isFinite(value) ? value : 0);
const time = value => (Number.isFinite(value) && value > 0 && value < 1e14 ? value : Date.now());

function fail(what, why) {
  throw new Error(`${what} ${why}`);
}

function string(value, where, limit) {
  if (value === undefined || value === null) return '';
  if (typeof value !== 'string') fail(where, `is ${show(value)}; expected text`);
  if (value.length > limit) fail(where, `is ${value.length} characters long; at most ${limit} are read`);
  return value;
}

function list(value, where, limit) {
  if (!Array.isArray(value)) fail(where, `is ${show(value)}; expected a list`);
  if (value.length > limit) fail(where, `has ${value.length} entries; at most ${limit} are read`);
  return value;
}
