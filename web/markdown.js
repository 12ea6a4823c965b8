// Markdown text -> a tree of blocks. Pure: no DOM, so that it runs under node too.
//
// The text comes from a model and may be hostile. Every scan below either consumes what it reads
// or is bounded, and nesting stops at MAX_DEPTH, so the whole is linear in the text; `meter.steps`
// counts the characters that are looked at, and the tests hold it to that. The inline text of a
// block (emphasis, links, ...) stays a string here; inline.js reads it when the block is shown.
//
// Blocks: {type: 'para'|'math', text} {type: 'heading', level, text} {type: 'rule'}
//   {type: 'code', lang, text, fence} {type: 'quote', blocks}
//   {type: 'list', ordered, mark, start, items: [{blocks, loose, task, line}]}
//   {type: 'table', align: [...], head: [text], rows: [[text]]}
// Top-level blocks and their items carry `line`, the index of their first line.

export const MAX_DEPTH = 10;
const MAX_COLUMNS = 64;
const MAX_ROWS = 2000;

export const meter = { steps: 0 };

export function parseBlocks(text) {
  return blocksOf(text.split('\n'), 0);
}

function blocksOf(lines, depth) {
  const out = [];
  const readers = depth < MAX_DEPTH ? READERS : FLAT_READERS;
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at++;
      continue;
    }
    for (const read of readers) {
      const next = read(lines, at, out, depth);
      if (next > at) {
        out[out.length - 1].line = at;
        at = next;
        break;
      }
    }
  }
  return out;
}

// ---- lines ----

const isBlank = line => indentOf(line) === line.length;

function indentOf(line) {
  let i = 0;
  while (i < line.length && (line[i] === ' ' || line[i] === '\t' || line[i] === '\r')) i++;
  meter.steps += i + 1;
  return i;
}

// Columns of white space in front; a tab reaches to the next multiple of four.
function columnsOf(line) {
  let columns = 0;
  for (let i = 0; i < line.length; i++) {
    meter.steps++;
    if (line[i] === ' ') columns++;
    else if (line[i] === '\t') columns += 4 - (columns % 4);
    else break;
  }
  return columns;
}

function cutColumns(line, count) {
  let columns = 0;
  let i = 0;
  while (i < line.length && columns < count) {
    if (line[i] === ' ') columns++;
    else if (line[i] === '\t') columns += 4 - (columns % 4);
    else break;
    i++;
  }
  meter.steps += i + 1;
  return ' '.repeat(Math.max(0, columns - count)) + line.slice(i);
}

// {char, size, info} of an opening code fence, or null.
function openFence(line) {
  const from = indentOf(line);
  const char = line[from];
  if (char !== '`' && char !== '~') return null;
  let end = from;
  while (line[end] === char) end++;
  if (end - from < 3) return null;
  meter.steps += line.length;
  const info = line.slice(end).trim();
  if (char === '`' && info.includes('`')) return null;
  return { char, size: end - from, indent: columnsOf(line), lang: info.split(/[\s{,]/, 1)[0].slice(0, 32) };
}

export function closesFence(line, fence) {
  const from = indentOf(line);
  let end = from;
  while (line[end] === fence.char) end++;
  meter.steps += end - from;
  return end - from >= fence.size && isBlank(line.slice(end));
}

export const fenceLine = (line, fence) => cutColumns(line.endsWith('\r') ? line.slice(0, -1) : line, fence.indent);

function headingOf(line) {
  const from = indentOf(line);
  let end = from;
  while (line[end] === '#') end++;
  const level = end - from;
  if (level < 1 || level > 6 || from > 3) return null;
  if (end < line.length && line[end] !== ' ' && line[end] !== '\t' && line[end] !== '\r') return null;
  meter.steps += line.length;
  let text = line.slice(end).trim();
  let tail = text.length;
  while (text[tail - 1] === '#') tail--;
  if (tail === 0 || text[tail - 1] === ' ') text = text.slice(0, tail).trim();
  return { type: 'heading', level, text };
}

function isRule(line) {
  const from = indentOf(line);
  const char = line[from];
  if (from > 3 || (char !== '-' && char !== '*' && char !== '_')) return false;
  let count = 0;
  for (let i = from; i < line.length; i++) {
    meter.steps++;
    if (line[i] === char) count++;
    else if (line[i] !== ' ' && line[i] !== '\t' && line[i] !== '\r') return false;
  }
  return count >= 3;
}

const ITEM = /([-+*]|\d{1,9}[.)])(?=[ \t\r]|$)/y;

// {indent, content, ordered, mark, start, rest} of a list item's first line, or null.
function itemOf(line) {
  const from = indentOf(line);
  ITEM.lastIndex = from;
  const match = ITEM.exec(line);
  if (!match) return null;
  const mark = match[1];
  const indent = columnsOf(line);
  const after = line.slice(from + mark.length);
  const gap = columnsOf(after);
  const pad = gap >= 1 && gap <= 4 ? gap : 1;
  return {
    indent,
    content: indent + mark.length + pad,
    ordered: mark.length > 1,
    mark: mark[mark.length - 1],
    start: mark.length > 1 ? Number(mark.slice(0, -1)) : 1,
    rest: cutColumns(after, pad)
  };
}

const isQuote = line => line[indentOf(line)] === '>';
const mathOpener = line => {
  const from = indentOf(line);
  if (line.startsWith('$$', from)) return ['$$', from];
  return line.startsWith('\\[', from) ? ['\\]', from] : null;
};

// Whether a line begins something that ends the paragraph before it.
function interrupts(lines, at) {
  const line = lines[at];
  if (openFence(line) || headingOf(line) || isRule(line) || isQuote(line) || mathOpener(line)) return true;
  const item = itemOf(line);
  if (item && item.rest.length && (!item.ordered || item.start === 1)) return true;
  return tableHead(lines, at) !== null;
}

// ---- readers: (lines, at, out, depth) -> the line after the block, or 0 ----

function readFence(lines, at, out) {
  const fence = openFence(lines[at]);
  if (!fence) return 0;
  const body = [];
  let i = at + 1;
  while (i < lines.length && !closesFence(lines[i], fence)) body.push(fenceLine(lines[i++], fence));
  out.push({ type: 'code', lang: fence.lang, text: body.join('\n'), fence: i < lines.length ? null : fence });
  return Math.min(i + 1, lines.length);
}

function readMath(lines, at, out) {
  const opener = mathOpener(lines[at]);
  if (!opener) return 0;
  const [close, from] = opener;
  let i = at;
  let end = lines[at].indexOf(close, from + 2);
  meter.steps += lines[at].length;
  while (end < 0 && i + 1 < lines.length && !isBlank(lines[i + 1])) {
    end = lines[++i].indexOf(close);
    meter.steps += lines[i].length;
  }
  // On one line with text after its end it is part of a sentence.
  if (i === at && end >= 0 && !isBlank(lines[i].slice(end + 2))) return 0;
  out.push({
    type: 'math',
    text: lines
      .slice(at, i + 1)
      .join('\n')
      .trim()
  });
  return i + 1;
}

function readHeading(lines, at, out) {
  const heading = headingOf(lines[at]);
  if (!heading) return 0;
  out.push(heading);
  return at + 1;
}

function readRule(lines, at, out) {
  if (!isRule(lines[at])) return 0;
  out.push({ type: 'rule' });
  return at + 1;
}

function readQuote(lines, at, out, depth) {
  if (!isQuote(lines[at])) return 0;
  const body = [];
  let i = at;
  for (; i < lines.length; i++) {
    const line = lines[i];
    if (isQuote(line)) {
      const from = indentOf(line) + 1;
      body.push(line.slice(line[from] === ' ' ? from + 1 : from));
    } else if (isBlank(line) || isBlank(body[body.length - 1]) || interrupts(lines, i)) break;
    else body.push(line);
  }
  out.push({ type: 'quote', blocks: blocksOf(body, depth + 1) });
  return i;
}

const TASK = /^\[([ xX])\][ \t]+/;

function readList(lines, at, out, depth) {
  const first = itemOf(lines[at]);
  if (!first) return 0;
  const list = { type: 'list', ordered: first.ordered, mark: first.mark, start: first.start, items: [] };
  let i = at;
  while (i < lines.length) {
    const item = itemOf(lines[i]);
    if (!item || item.ordered !== first.ordered || item.mark !== first.mark || isRule(lines[i])) break;
    i = readItem(lines, i, item, list, depth);
  }
  out.push(list);
  return i;
}

function readItem(lines, at, item, list, depth) {
  const task = TASK.exec(item.rest);
  const body = [task ? item.rest.slice(task[0].length) : item.rest];
  let blanks = 0;
  let loose = false;
  let i = at + 1;
  for (; i < lines.length; i++) {
    const line = lines[i];
    if (isBlank(line)) {
      blanks++;
      continue;
    }
    const columns = columnsOf(line);
    // Models often indent a nested list by two where three would be right.
    const inside = columns >= item.content || (columns >= item.indent + 2 && itemOf(line) !== null);
    const lazy = !blanks && !itemOf(line) && !isBlank(body[body.length - 1]) && !interrupts(lines, i);
    if (!inside && !lazy) break;
    if (blanks) loose = true;
    for (; blanks; blanks--) body.push('');
    body.push(inside ? cutColumns(line, Math.min(columns, item.content)) : line);
  }
  list.items.push({
    blocks: blocksOf(body, depth + 1),
    loose: loose || (blanks > 0 && i < lines.length && itemOf(lines[i]) !== null),
    task: task ? task[1] !== ' ' : null,
    line: at
  });
  return i;
}

// ---- tables ----

// The cells of a row; an escaped pipe does not divide.
function cellsOf(line) {
  const cells = [];
  let cell = '';
  let from = indentOf(line);
  let end = line.length;
  while (end > from && ' \t\r'.includes(line[end - 1])) end--;
  if (line[from] === '|') from++;
  if (end > from && line[end - 1] === '|' && line[end - 2] !== '\\') end--;
  let start = from;
  for (let i = from; i < end; i++) {
    meter.steps++;
    if (line[i] === '\\' && line[i + 1] === '|') {
      cell += line.slice(start, i);
      start = ++i;
    } else if (line[i] === '\\') i++;
    else if (line[i] === '|') {
      cells.push((cell + line.slice(start, i)).trim());
      cell = '';
      start = i + 1;
    }
    if (cells.length > MAX_COLUMNS) return cells;
  }
  cells.push((cell + line.slice(start, end)).trim());
  return cells;
}

// {head, align} when `at` is the first line of a table, or null.
function tableHead(lines, at) {
  if (at + 1 >= lines.length) return null;
  const rule = lines[at + 1];
  const first = rule[indentOf(rule)];
  if ((first !== '|' && first !== '-' && first !== ':') || !lines[at].includes('|')) return null;
  meter.steps += lines[at].length;
  for (const char of rule) {
    meter.steps++;
    if (!'|-: \t\r'.includes(char)) return null;
  }
  const marks = cellsOf(rule);
  const head = cellsOf(lines[at]);
  if (marks.length !== head.length || head.length > MAX_COLUMNS) return null;
  const align = [];
  for (const mark of marks) {
    if (!mark.includes('-')) return null;
    const [left, right] = [mark.startsWith(':'), mark.endsWith(':')];
    align.push(right ? (left ? 'center' : 'right') : left ? 'left' : '');
  }
  return { head, align };
}

function readTable(lines, at, out, depth) {
  const table = tableHead(lines, at);
  if (!table) return 0;
  const rows = [];
  let i = at + 2;
  while (i < lines.length && rows.length < MAX_ROWS && !isBlank(lines[i]) && lines[i].includes('|')) {
    rows.push(cellsOf(lines[i++]).slice(0, table.head.length));
  }
  out.push({ type: 'table', ...table, rows });
  return i;
}

// ---- what is left ----

function readPara(lines, at, out) {
  const text = [lines[at].trim()];
  let i = at + 1;
  for (; i < lines.length && !isBlank(lines[i]) && !interrupts(lines, i); i++) text.push(lines[i].trim());
  out.push({ type: 'para', text: text.join('\n') });
  return i;
}

const LEAVES = [readFence, readMath, readHeading, readRule];
// Indented code and underlined headings are left out: models do not mean them where they occur.
const READERS = [...LEAVES, readQuote, readTable, readList, readPara];
const FLAT_READERS = [...LEAVES, readPara];
