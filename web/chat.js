// A conversation: a tree of messages, of which one path is shown. Pure.
//
// chat = {id, title, named, created, updated, system, schema, tools, from,
//         nodes: [node], chosen: {parent: child}}
// node = {id, parent, role: 'user'|'assistant'|'tool', text, ...}; its id is its index in `nodes`,
// a parent's is smaller than its child's, and -1 stands above the first message.
//   user: images [data URL]; tool: call (the id of the call), name
//   assistant: reasoning, thought (ms), calls [{id, name, arguments}], probs [[token, logprob, [[token, logprob]]]],
//     stats, finish, error {kind, message, ...}, model
// Nodes are never removed: editing and regenerating add siblings, `chosen` says which one is shown.
// `from` is the first node that is still sent after older turns were left out, or -1.

export function newChat(now = Date.now()) {
  return {
    id: crypto.randomUUID ? crypto.randomUUID() : `c${now}-${Math.random().toString(36).slice(2)}`,
    title: 'New conversation',
    named: false,
    created: now,
    updated: now,
    system: '',
    schema: '',
    tools: '',
    from: -1,
    nodes: [],
    chosen: {}
  };
}

export function addNode(chat, parent, role, fields) {
  const node = { id: chat.nodes.length, parent, role, text: '', time: Date.now(), ...fields };
  chat.nodes.push(node);
  chat.chosen[parent] = node.id;
  chat.updated = node.time;
  return node;
}

const childrenOf = (chat, parent) => chat.nodes.filter(node => node.parent === parent);

// The messages that are shown, first to last.
export function pathOf(chat) {
  const newest = new Map(); // for a parent whose choice is not recorded
  for (const node of chat.nodes) newest.set(node.parent, node.id);
  const path = [];
  let at = -1;
  while (newest.has(at)) {
    const wanted = chat.nodes[chat.chosen[at]];
    const node = wanted && wanted.parent === at ? wanted : chat.nodes[newest.get(at)];
    path.push(node);
    at = node.id;
  }
  return path;
}

// {index, count, ids} of a message among its versions.
export function versionsOf(chat, node) {
  const ids = childrenOf(chat, node.parent)
    .filter(n => n.role === node.role)
    .map(n => n.id);
  return { index: ids.indexOf(node.id), count: ids.length, ids };
}

export function titleFrom(text) {
  const line = text.trim().split('\n', 1)[0].replace(/\s+/g, ' ');
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line || 'Image';
}

// The messages of a request that asks for what follows `path`.
export function messagesOf(chat, path) {
  const messages = path.slice(startOf(chat, path)).filter(isSent).map(messageOf).reduce(joinQuestions, []);
  if (chat.system.trim()) messages.unshift({ role: 'system', content: chat.system });
  return messages;
}

const isSent = node => node.role !== 'assistant' || Boolean(node.text || node.calls?.length);

// After an answer that failed two questions follow each other, which many templates refuse.
function joinQuestions(messages, message) {
  const last = messages[messages.length - 1];
  if (!last || last.role !== 'user' || message.role !== 'user') {
    messages.push(message);
    return messages;
  }
  const parts = content => (typeof content === 'string' ? [{ type: 'text', text: content }] : content);
  const texts = [last.content, message.content];
  last.content = texts.every(t => typeof t === 'string') ? texts.join('\n\n') : texts.flatMap(parts);
  return messages;
}

function messageOf(node) {
  if (node.role === 'tool') return { role: 'tool', tool_call_id: node.call, content: node.text };
  if (node.role === 'user') return { role: 'user', content: userContent(node) };
  const message = { role: 'assistant', content: node.text || null };
  if (node.reasoning) message.reasoning_content = node.reasoning;
  if (node.calls?.length) {
    message.tool_calls = node.calls.map(call => ({
      id: call.id,
      type: 'function',
      function: { name: call.name, arguments: call.arguments }
    }));
  }
  return message;
}

function userContent(node) {
  if (!node.images || !node.images.length) return node.text;
  const parts = node.images.map(url => ({ type: 'image_url', image_url: { url } }));
  if (node.text) parts.push({ type: 'text', text: node.text });
  return parts;
}

// Where the messages that are sent begin in `path`.
const startOf = (chat, path) =>
  Math.max(
    0,
    path.findIndex(node => node.id === chat.from)
  );

const lastQuestion = path => path.findLastIndex(node => node.role === 'user');

// Whether there is anything before the last question that is still sent.
export const canLeaveOut = (chat, path) => startOf(chat, path) < lastQuestion(path);

const IMAGE_SIZE = 4000; // characters that an image stands for

function sizeOf(node) {
  const calls = (node.calls || []).reduce((sum, call) => sum + call.name.length + call.arguments.length, 0);
  return node.text.length + calls + IMAGE_SIZE * (node.images ? node.images.length : 0) + 16;
}

// Leaves out the oldest turns so that about three quarters of `room` tokens are filled, judged by
// the length of the texts; the last question always stays. False when there is nothing to leave out.
// At least one message goes each time, so asking again and again comes to an end.
export function leaveOutOldest(chat, path, used, room) {
  if (!canLeaveOut(chat, path)) return false;
  const now = startOf(chat, path);
  const last = lastQuestion(path);
  const fixed = chat.system.length + chat.tools.length + chat.schema.length; // always sent
  let size = path.slice(now).reduce((sum, node) => sum + sizeOf(node), 0);
  const target = used > 0 && room > 0 ? ((size + fixed) * room * 0.75) / used - fixed : size / 2;
  let first = now;
  while (first < last && (size > target || path[first].role !== 'user' || first === now)) size -= sizeOf(path[first++]);
  chat.from = path[first].id;
  return true;
}
