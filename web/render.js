// Blocks of Markdown -> DOM nodes, and StreamView, which shows a text that is still being written.

import { copyText, el, icon } from './dom.js';
import { createLexer } from './highlight.js';
import { parseInline, safeHref } from './inline.js';
import { formulaOf, parseTex } from './maths.js';
import { closesFence, fenceLine, parseBlocks } from './markdown.js';

// ---- inline ----

function inlineNodes(text) {
  return parseInline(text).map(inlineNode);
}

const INLINE = {
  text: n => document.createTextNode(n.v),
  br: () => el('br'),
  code: n => el('code', n.v),
  math: n => el('span.math', formulaNode(n.v, false) || n.v),
  em: n => el('em', ...n.kids.map(inlineNode)),
  strong: n => el('strong', ...n.kids.map(inlineNode)),
  del: n => el('del', ...n.kids.map(inlineNode)),
  link: linkNode
};

const inlineNode = n => INLINE[n.t](n);

// An image is never loaded: what a model writes must not make the browser ask other servers.
function linkNode(n) {
  const href = safeHref(n.href);
  const kids = n.kids.map(inlineNode);
  if (n.image) kids.unshift(icon('image'), kids.length ? ' ' : 'image');
  if (href)
    return el('a', { href, rel: 'noopener noreferrer', target: '_blank', class: n.image && 'image-link' }, ...kids);
  return el('span.dead-link', { title: 'This kind of address is not opened' }, ...kids, ` (${n.href})`);
}

// ---- formulas ----

const MATHML = 'http://www.w3.org/1998/Math/MathML';

function mathNode([tag, inside, attributes = {}]) {
  const node = document.createElementNS(MATHML, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...(typeof inside === 'string' ? [inside] : inside.map(mathNode)));
  return node;
}

// The formula as it is printed, or null where it stays as it is written.
function formulaNode(source, display) {
  const tree = parseTex(formulaOf(source));
  return tree && mathNode(['math', [tree], display ? { display: 'block' } : {}]);
}

function mathBlock(b) {
  const formula = formulaNode(b.text, true);
  const more = formula ? { role: 'group', 'aria-label': 'Formula' } : { role: 'math', 'aria-label': b.text };
  return el('div.math.math-block', { tabindex: '0', ...more }, formula || b.text);
}

// ---- blocks ----

const BLOCK = {
  para: b => el('p', ...inlineNodes(b.text)),
  heading: b => el(b.as ? `h${b.as}` : 'p', { class: `md-h md-h${b.level}` }, ...inlineNodes(b.text)),
  rule: () => el('hr'),
  math: mathBlock,
  quote: b => el('blockquote', ...b.blocks.map(blockNode)),
  code: b => codeNode(b.lang, b.text),
  list: listNode,
  table: tableNode
};

const blockNode = b => BLOCK[b.type](b);

function listNode(b) {
  const list = el(b.ordered ? 'ol' : 'ul', { start: b.ordered && b.start !== 1 && String(b.start) });
  list.append(...b.items.map(itemNode));
  return list;
}

function itemNode(item) {
  const kids = [];
  for (const block of item.blocks) {
    if (block.type === 'para' && !item.loose) kids.push(...inlineNodes(block.text));
    else kids.push(blockNode(block));
  }
  const label = item.task ? 'done' : 'to do';
  const box =
    item.task !== null && el('input', { type: 'checkbox', disabled: true, checked: item.task, 'aria-label': label });
  return el('li', { class: item.task !== null ? 'task' : item.loose && 'loose' }, box, ...kids);
}

function tableNode(b) {
  const row = (cells, tag) =>
    el('tr', ...b.align.map((align, i) => el(tag, { class: align && `to-${align}` }, ...inlineNodes(cells[i] || ''))));
  const table = el('table', el('thead', row(b.head, 'th')), el('tbody', ...b.rows.map(cells => row(cells, 'td'))));
  return el('div.table-scroll', { tabindex: '0', role: 'region', 'aria-label': 'Table' }, table);
}

export function codeNode(lang, text) {
  const view = new CodeView(lang);
  if (text) for (const line of text.split('\n')) view.line(line);
  return view.node;
}

// A code block that can grow: finished lines are coloured once and never touched again.
class CodeView {
  constructor(lang) {
    this.lexer = createLexer(lang);
    this.code = el('code');
    this.last = document.createTextNode('');
    this.code.append(this.last);
    this.started = false;
    const copy = el('button.copy', { 'aria-label': 'Copy code' }, icon('copy'), el('span', 'Copy'));
    copy.addEventListener('click', () => copyText(this.code.textContent, copy));
    this.node = el(
      'figure.code',
      el('figcaption', el('span', lang || 'text'), copy),
      el('pre', { tabindex: '0', 'aria-label': `Code${lang ? `, ${lang}` : ''}`, role: 'region' }, this.code)
    );
  }

  line(text) {
    const pieces = document.createDocumentFragment();
    if (this.started) pieces.append('\n');
    this.started = true;
    for (const [kind, piece] of this.lexer.line(text))
      pieces.append(kind ? el('span', { class: `hl-${kind}` }, piece) : piece);
    this.last.before(pieces);
    this.last.data = '';
  }

  // The line that is still being written, without colours.
  unfinished(text) {
    this.last.data = this.started && text ? `\n${text}` : text;
  }
}

// ---- streaming ----

// Shows a text that only grows. What lies before `done` is final and is not read again; of the
// rest only the last block (or the last item of a list, or the last line of a code block) is made
// anew. A last block that gets long is made anew only when it has grown by a 256th of its length,
// so that the work stays in proportion to the text.
export class StreamView {
  constructor(node) {
    this.node = node;
    this.done = 0; // characters whose nodes are final
    this.drawn = 0; // characters that are shown
    this.level = 2; // of the last heading that is final
    this.open = []; // nodes of the last block
    this.list = null; // the list whose last item is open: {node, ordered, mark}
    this.code = null; // the code block that is open: {view, fence}
  }

  update(text, finished = false) {
    if (this.code) this.feedCode(text);
    if (this.code) {
      this.drawn = text.length;
      return;
    }
    const tail = text.length - this.done;
    if (!finished && (text.length - this.drawn) * 256 < tail) return;
    if (text.length === this.drawn && !finished) return;
    this.drawn = text.length;
    this.draw(text);
  }

  draw(text) {
    const source = text.slice(this.done);
    const blocks = parseBlocks(source);
    this.setLevels(blocks);
    for (const node of this.open) node.remove();
    this.open = [];
    if (!blocks.length) return;
    const starts = lineStarts(source, [...blocks, ...(blocks[blocks.length - 1].items || [])]);
    const last = blocks.pop();
    blocks.forEach(block => this.addFinal(block));
    this.addLast(last, starts, source);
    if (this.code) this.feedCode(text);
  }

  // The page's own headings are h1 and h2; those of an answer come below, without gaps. One that
  // is inside something else only looks like a heading.
  setLevels(blocks) {
    let { level } = this;
    for (const block of blocks) {
      if (block.type === 'heading') level = block.as = Math.max(3, Math.min(6, block.level + 2, level + 1));
    }
  }

  addFinal(block) {
    this.level = block.as || this.level;
    if (!this.joinList(block, block.items)) this.node.append(blockNode(block));
    this.list = null;
  }

  addLast(block, starts, source) {
    const { items } = block;
    const base = this.done;
    if (block.type === 'list') {
      const final = items.slice(0, -1);
      if (!this.joinList(block, final)) {
        const node = listNode({ ...block, items: final });
        this.list = { node, ordered: block.ordered, mark: block.mark };
        this.node.append(node);
      }
      const item = itemNode(items[items.length - 1]);
      this.list.node.append(item);
      this.open = [item];
      this.done = base + starts.get(items[items.length - 1].line);
      return;
    }
    this.list = null;
    this.done = base + starts.get(block.line);
    // Before the end of its first line the language is not known.
    if (block.fence && source.includes('\n', starts.get(block.line))) {
      this.code = { view: new CodeView(block.lang), fence: block.fence, first: true };
      this.node.append(this.code.view.node);
      return;
    }
    this.open = [blockNode(block)];
    this.node.append(...this.open);
  }

  // Adds items to the list that is open, if `block` goes on with it.
  joinList(block, items) {
    const { list } = this;
    if (
      !list ||
      block.type !== 'list' ||
      block.ordered !== list.ordered ||
      block.mark !== list.mark ||
      block.line !== 0
    )
      return false;
    list.node.append(...items.map(itemNode));
    return true;
  }

  feedCode(text) {
    const { code } = this;
    for (;;) {
      const end = text.indexOf('\n', this.done);
      if (end < 0) break;
      const line = text.slice(this.done, end);
      if (!code.first && closesFence(line, code.fence)) {
        this.code = null;
        code.view.unfinished('');
        this.done = end + 1;
        return;
      }
      if (!code.first) code.view.line(fenceLine(line, code.fence));
      code.first = false;
      this.done = end + 1;
    }
    const rest = text.slice(this.done);
    const closing = code.first || (rest.length && code.fence.char.repeat(code.fence.size).startsWith(rest.trim()));
    code.view.unfinished(closing ? '' : fenceLine(rest, code.fence));
  }
}

// Line index -> offset, for the lines where the given blocks start.
function lineStarts(source, blocks) {
  const wanted = new Set(blocks.map(block => block.line));
  const starts = new Map();
  let at = 0;
  for (let line = 0; at >= 0; line++) {
    if (wanted.has(line)) starts.set(line, at);
    if (starts.size === wanted.size) break;
    const next = source.indexOf('\n', at);
    at = next < 0 ? -1 : next + 1;
  }
  return starts;
}
