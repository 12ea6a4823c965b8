// What the page does without a browser: Markdown, colours, streams, conversations, import.
// Needs node alone.

import assert from 'node:assert/strict';
import {
  addNode,
  canLeaveOut,
  leaveOutOldest,
  messagesOf,
  newChat,
  pathOf,
  titleFrom,
  versionsOf
} from '../../web/chat.js';
import { createLexer } from '../../web/highlight.js';
import { parseInline, safeHref } from '../../web/inline.js';
import { formulaOf, parseTex } from '../../web/maths.js';
import { MAX_DEPTH, meter, parseBlocks } from '../../web/markdown.js';
import { readSampling, requestBody, SAMPLING, whySame, wrongSettings } from '../../web/request.js';
import { EventReader } from '../../web/sse.js';
import { exportText, importText, LIMITS } from '../../web/transfer.js';

let failed = 0;
function test(name, body) {
  try {
    body();
    console.log(`ok    ${name}`);
  } catch (error) {
    failed++;
    console.log(`FAIL  ${name}\n      ${error.message.split('\n').slice(0, 12).join('\n      ')}`);
  }
}

// ---- trees as short text ----

const inline = text => parseInline(text).map(inlineText).join('');
function inlineText(n) {
  if (n.t === 'text') return n.v;
  if (n.t === 'br') return '⏎';
  if (n.t === 'link') return `<${n.image ? 'image' : 'link'} ${n.href}|${n.kids.map(inlineText).join('')}>`;
  return `<${n.t}|${n.kids ? n.kids.map(inlineText).join('') : n.v}>`;
}

const blocks = text => parseBlocks(text).map(blockText).join(' ');
const BLOCK = {
  para: b => `p(${inline(b.text)})`,
  heading: b => `h${b.level}(${inline(b.text)})`,
  rule: () => 'hr',
  math: b => `math(${b.text})`,
  code: b => `code:${b.lang}(${b.text})`,
  quote: b => `quote(${b.blocks.map(blockText).join(' ')})`,
  list: b => `${b.ordered ? `ol${b.start}` : 'ul'}(${b.items.map(itemText).join('; ')})`,
  table: b => `table[${b.align}](${[b.head, ...b.rows].map(row => row.join('|')).join(' / ')})`
};
const blockText = b => BLOCK[b.type](b);
const itemText = i =>
  `${i.task === null ? '' : i.task ? '[x] ' : '[ ] '}${i.loose ? 'loose ' : ''}${i.blocks.map(blockText).join(' ')}`;

const INLINE_CASES = [
  ['plain', 'a b', 'a b'],
  ['emphasis', '*a* **b** ***c*** _d_ __e__', '<em|a> <strong|b> <em|<strong|c>> <em|d> <strong|e>'],
  ['nested', '**a *b* c**', '<strong|a <em|b> c>'],
  ['arithmetic', '2 * 3 * 4', '2 * 3 * 4'],
  ['names', 'snake_case_name', 'snake_case_name'],
  ['unclosed', '**a *b', '**a *b'],
  ['beside other scripts', '**「あ」**は', '<strong|「あ」>は'],
  ['struck out', '~~a~~ ~b~', '<del|a> ~b~'],
  ['long runs', '****a****', '****a****'],
  ['code', '`a*b*` ``c`d``', '<code|a*b*> <code|c`d>'],
  ['open code', '`a *b*', '`a <em|b>'],
  ['escapes', '\\*a\\* \\q', '*a* \\q'],
  ['link', '[a *b*](https://c.d "t")', '<link https://c.d|a <em|b>>'],
  ['parentheses', '[a](http://b/c_(d))', '<link http://b/c_(d)|a>'],
  ['no link', '[a] [b](c d)', '[a] [b](c d)'],
  ['image', '![a](http://b)', '<image http://b|a>'],
  ['linked image', '[![a](http://b)](http://c)', '<link http://c|<image http://b|a>>'],
  [
    'address',
    'see https://a.b/c_d_e, or <mailto:x@y.z>.',
    'see <link https://a.b/c_d_e|https://a.b/c_d_e>, or <link mailto:x@y.z|mailto:x@y.z>.'
  ],
  ['bold address', '**https://a.b**', '<strong|<link https://a.b|https://a.b>>'],
  ['maths', '$a*b*c$ \\(x_1*y_1*\\) $$a$$', '<math|$a*b*c$> <math|\\(x_1*y_1*\\)> <math|$$a$$>'],
  ['money', '$5 and $10', '$5 and $10'],
  ['HTML', '<b onclick="x">&lt;i&gt;<br>', '<b onclick="x"><i>⏎'],
  ['lines', 'a\nb', 'a⏎b']
];

const BLOCK_CASES = [
  ['headings', '# a\n###### b #\n####### c', 'h1(a) h6(b) p(####### c)'],
  ['paragraphs', 'a\nb\n\nc', 'p(a⏎b) p(c)'],
  ['rules', '---\n* * *\na\n---\nb', 'hr hr p(a) hr p(b)'],
  ['code', '```c\nint *a;\n\n*b*\n```\nc', 'code:c(int *a;\n\n*b*) p(c)'],
  ['code that is open', '~~~\na\n```', 'code:(a\n```)'],
  ['code in an item', '1. a\n\n   ```sh\n   ls\n     x\n   ```\n2. b', 'ol1(loose p(a) code:sh(ls\n  x); p(b))'],
  ['lists', '- a\n- b\n  - c\n    d\n- e', 'ul(p(a); p(b) ul(p(c⏎d)); p(e))'],
  ['list indented by two', '1. a\n  - b\n2. c', 'ol1(p(a) ul(p(b)); p(c))'],
  ['list that starts late', '3) a\n4) b', 'ol3(p(a); p(b))'],
  ['two lists', '- a\n* b', 'ul(p(a)) ul(p(b))'],
  ['loose list', '- a\n\n- b', 'ul(loose p(a); p(b))'],
  ['lazy line', '- a\nb\n\nc', 'ul(p(a⏎b)) p(c)'],
  ['tasks', '- [x] a\n- [ ] b', 'ul([x] p(a); [ ] p(b))'],
  ['number in a sentence', 'the year was\n1984. b', 'p(the year was⏎1984. b)'],
  ['quote', '> a\n> > b\n> - c\nd', 'quote(p(a) quote(p(b)) ul(p(c⏎d)))'],
  ['table', 'x\n| a | b |\n|:-|-:|\n| 1 | 2 \\| 3 |\n| 4 |\n\ny', 'p(x) table[left,right](a|b / 1|2 | 3 / 4) p(y)'],
  ['no table', 'a | b\nc', 'p(a | b⏎c)'],
  ['maths', '$$\na*b*c\n$$\n\\[ x \\]\n$$y$$ z', 'math($$\na*b*c\n$$) math(\\[ x \\]) p(<math|$$y$$> z)'],
  ['CRLF', '# a\r\n\r\n- b\r\n- c\r\n```\r\nd\r\n```\r\n', 'h1(a) ul(p(b); p(c)) code:(d)']
];

for (const [name, text, want] of INLINE_CASES) test(`inline: ${name}`, () => assert.equal(inline(text), want));
for (const [name, text, want] of BLOCK_CASES) test(`blocks: ${name}`, () => assert.equal(blocks(text), want));

test('links: only http, https and mailto', () => {
  for (const good of ['http://a', 'HTTPS://b/c?d', 'mailto:x@y']) assert.equal(safeHref(good), good);
  for (const bad of [
    'javascript:alert(1)',
    ' javascript:x',
    'data:text/html,x',
    'java\nscript:x',
    '//a',
    '/b',
    'file:///c',
    'http://a b',
    ''
  ])
    assert.equal(safeHref(bad), null);
});

// ---- work in proportion to the text, counted in characters looked at ----

const repeat = piece => n => piece.repeat(Math.ceil(n / piece.length));
const BOMBS = {
  asterisks: repeat('*'),
  'asterisks and spaces': repeat('* '),
  'openers that never close': repeat('*a '),
  'openers of two kinds': repeat('*a_'),
  'strong and em': repeat('**a *b '),
  closers: repeat('a* '),
  'open brackets': repeat('['),
  'open images': repeat('!['),
  'links without end': repeat('[a]('),
  'links with titles': repeat('[a](b "'),
  'one link, many parentheses': n => `[a](${'('.repeat(n)}`,
  'growing runs of backticks': n => {
    let text = '';
    for (let i = 1; text.length < n; i++) text += `${'`'.repeat(i)}a`;
    return text;
  },
  quotes: repeat('>'),
  'quoted lines': repeat('> > > > > > > > > > > > > a\n'),
  'a list that goes ever deeper': n => {
    let text = '';
    for (let i = 0; text.length < n; i++) text += `${'  '.repeat(i)}- a\n`;
    return text;
  },
  'items on one line': repeat('- + '),
  'loose items': repeat('- a\n\n'),
  'lazy lines': n => `- a\n${'b\n'.repeat(n / 2)}`,
  'wide table': n => `${'|a'.repeat(n / 4)}|\n${'|-'.repeat(n / 4)}|`,
  'long table': n => `|a|b|\n|-|-|\n${'|c|d|\n'.repeat(n / 6)}`,
  'table heads': repeat('|-\n'),
  'display maths': n => `${'\\[\n'.repeat(n / 3)}\\] x`,
  'inline maths': repeat('\\('),
  dollars: repeat('$a '),
  'double dollars': repeat('$$a\n'),
  addresses: repeat('http://'),
  'address in parentheses': n => `http://a${')'.repeat(n)}`,
  'angle addresses': repeat('<http://a'),
  breaks: repeat('<br'),
  entities: repeat('&amp'),
  fences: repeat('```\n~~~\n'),
  spaces: repeat(' '),
  hashes: n => `# ${'#'.repeat(n)}`,
  lines: repeat('a\n'),
  'all of it': repeat('*_~~a~~_* `b` [c](d) $e$ <br>\n- f\n> g\n')
};

function readAll(list) {
  let depth = 0;
  for (const b of list) {
    for (const text of [b.text, ...(b.head || []), ...(b.rows || []).flat()])
      if (text && b.type !== 'code') parseInline(text);
    const inside = [b.blocks || [], ...(b.items || []).map(item => item.blocks)];
    depth = Math.max(depth, 1, ...inside.map(kids => (kids.length ? 1 + readAll(kids) : 1)));
  }
  return depth;
}

function stepsFor(text) {
  meter.steps = 0;
  const depth = readAll(parseBlocks(text));
  assert.ok(depth <= MAX_DEPTH + 1, `nesting of ${depth}`);
  return meter.steps;
}

for (const [name, make] of Object.entries(BOMBS)) {
  test(`linear: ${name}`, () => {
    const [small, large] = [make(20000), make(160000)];
    const [a, b] = [stepsFor(small) / small.length, stepsFor(large) / large.length];
    assert.ok(b < 64, `${b.toFixed(1)} steps for each character`);
    assert.ok(
      b < 1.8 * a + 1,
      `${a.toFixed(1)} steps for each character of ${small.length}, ${b.toFixed(1)} of ${large.length}`
    );
  });
}

test('nesting of what comes out is bounded', () => {
  const depthOf = nodes => Math.max(0, ...nodes.map(n => (n.kids ? 1 + depthOf(n.kids) : 0)));
  const open = '*a **b _c __d '.repeat(2000);
  assert.ok(depthOf(parseInline(open + ' d__ c_ b** a*'.repeat(2000))) < 100);
  assert.ok(depthOf(parseInline('[!['.repeat(3000) + 'a](http://b)'.repeat(3000))) < 100);
});

// ---- colours ----

const colours = (lang, text) => {
  const lexer = createLexer(lang);
  return text
    .split('\n')
    .map(line =>
      lexer
        .line(line)
        .map(([kind, piece]) => (kind ? `<${kind}|${piece}>` : piece))
        .join('')
    )
    .join('\n');
};
const COLOURS = [
  [
    'c',
    '#include <a.h>\nint f(void) { /* a\nb */ return 0x1F; } // "c"',
    '<pre|#include> <a.h>\n<typ|int> <fn|f>(<typ|void>) { <com|/* a>\n<com|b */> <key|return> <num|0x1F>; } <com|// "c">'
  ],
  ['C++', 'char *s = "a\\"b"; // c', '<typ|char> *s = <str|"a\\"b">; <com|// c>'],
  [
    'py',
    '@a\ndef f(x):\n  """b\n  c"""\n  return 1.5e3 # d',
    '<pre|@a>\n<key|def> <fn|f>(x):\n  <str|"""b>\n<str|  c""">\n  <key|return> <num|1.5e3> <com|# d>'
  ],
  ['js', 'const a = `b\n${c}`; f(1)', '<key|const> a = <str|`b>\n<str|${c}`>; <fn|f>(<num|1>)'],
  ['bash', 'ls -la "$HOME" a#b # c\necho ${d}', 'ls <att|-la> <str|"$HOME"> a#b <com|# c>\n<key|echo> <var|${d}>'],
  ['json', '{"a": [1, true, "b"]}', '{<att|"a">: [<num|1>, <key|true>, <str|"b">]}'],
  ['html', '<a href="x">y</a><!-- c -->', '<tag|<a> <att|href>=<str|"x"><tag|>>y<tag|</a><tag|>><com|<!-- c -->>'],
  [
    'sql',
    "SELECT a, count(*) FROM t -- b\nwhere c = 'd'",
    "<key|SELECT> a, <fn|count>(*) <key|FROM> t <com|-- b>\n<key|where> c = <str|'d'>"
  ],
  ['css', '@media x { /* a */ b: 2px }', '<pre|@media> x { <com|/* a */> b: <num|2px> }'],
  ['lua', 'local a = "b" -- c', '<key|local> a = <str|"b"> <com|-- c>'],
  ['ruby', 'def a # b\n  nil', '<key|def> a <com|# b>\n  <key|nil>'],
  ['diff', '@@ -1 +1 @@\n-a\n+b\n c', '<pre|@@ -1 +1 @@>\n<key|-a>\n<str|+b>\n c'],
  ['unknown', 'int a;', 'int a;']
];
for (const [lang, text, want] of COLOURS) test(`colours: ${lang}`, () => assert.equal(colours(lang, text), want));

test('colours never change the text', () => {
  const text = `'"\`/*-->{}<a b='c\\` + '"""\\\\ #$x ${y -z 1e5 0x <!-- @w //é日本\t';
  for (const lang of ['c', 'js', 'py', 'sh', 'json', 'html', 'yaml', '']) {
    const lexer = createLexer(lang);
    for (let i = 0; i <= text.length; i++)
      assert.equal(
        lexer
          .line(text.slice(i))
          .map(([, piece]) => piece)
          .join(''),
        text.slice(i),
        lang
      );
  }
  assert.deepEqual(createLexer('c').line('"'.repeat(5000)), [['', '"'.repeat(5000)]]);
});

// ---- formulas ----

const treeText = ([tag, inside]) => `${tag}(${typeof inside === 'string' ? inside : inside.map(treeText).join(' ')})`;
const formula = source => {
  const tree = parseTex(formulaOf(source));
  return tree && tree[1].map(treeText).join(' ');
};
const FORMULAS = [
  ['$x$', 'mi(x)'],
  ['$$ a^2 + b_1^{10} $$', 'msup(mi(a) mn(2)) mo(+) msubsup(mi(b) mn(1) mrow(mn(10)))'],
  ['\\(x^12\\)', 'msup(mi(x) mn(1)) mn(2)'],
  ['\\[ \\frac{1}{\\sqrt{n}} \\]', 'mfrac(mrow(mn(1)) mrow(msqrt(mrow(mi(n)))))'],
  ['\\frac12', 'mfrac(mn(1) mn(2))'],
  ['\\sum_{i=1}^n \\alpha_i', 'munderover(mo(∑) mrow(mi(i) mo(=) mn(1)) mi(n)) msub(mi(α) mi(i))'],
  ['\\lim\\limits_{x\\to 0} x', 'munder(mo(lim) mrow(mi(x) mo(→) mn(0))) mi(x)'],
  ['\\left(a\\right]', 'mrow(mo(() mi(a) mo(]))'],
  ["f''(x)", 'msup(mi(f) mrow(mo(′) mo(′))) mo(() mi(x) mo())'],
  ['a\\text{ if }b', 'mi(a) mtext(\u00a0if\u00a0) mi(b)'],
  [
    '\\begin{pmatrix}a&b\\\\c&d\\end{pmatrix}',
    'mrow(mo(() mtable(mtr(mtd(mi(a)) mtd(mi(b))) mtr(mtd(mi(c)) mtd(mi(d)))) mo()))'
  ],
  ['\\mathbb{R}\\mathcal{L}\\mathbf{x1}', 'mi(ℝ) mi(ℒ) mi(𝐱1)']
];
for (const [source, want] of FORMULAS) test(`formula: ${source}`, () => assert.equal(formula(source), want));

test('formulas with anything that is not known stay as they are', () => {
  for (const source of [
    '\\foo',
    'a}',
    '{a',
    'x^',
    'a_b_c',
    'a & b',
    'a \\\\ b',
    '\\frac1',
    '\\left(a',
    '\\begin{x}\\end{x}',
    '\\begin{matrix}a\\end{cases}',
    '\\text{a{b}}',
    '\\text',
    '#',
    '\\href{javascript:x}{y}',
    '\\constructor',
    '\\__proto__',
    'x'.repeat(4001)
  ])
    assert.equal(formula(source), null, source.slice(0, 20));
});

test('formulas nest no deeper than a limit', () => {
  for (const piece of ['{', '\\frac', 'x^', '\\sqrt', '\\sqrt[', '\\left(', '\\begin{matrix}', '\\hat'])
    assert.equal(formula(piece.repeat(Math.floor(4000 / piece.length))), null, piece);
  assert.ok(formula('{'.repeat(20) + '}'.repeat(20)));
});

// ---- streams ----

test('events come out whole however the stream is cut', () => {
  const text = 'data: {"a":1}\r\n\r\n: ping\n\ndata:b\ndata: c\n\nevent: x\ndata: [DONE]\n\n';
  for (let size = 1; size < 12; size++) {
    const reader = new EventReader();
    const events = [];
    for (let i = 0; i < text.length; i += size) events.push(...reader.push(text.slice(i, i + size)));
    assert.deepEqual(events, ['{"a":1}', 'b\nc', '[DONE]']);
  }
  assert.throws(() => new EventReader().push('a'.repeat((32 << 20) + 1)), /32 MB/);
});

// ---- conversations ----

function sample() {
  const chat = newChat();
  const q = addNode(chat, -1, 'user', { text: 'one', images: ['data:image/png;base64,AAAA'] });
  const a = addNode(chat, q.id, 'assistant', {
    text: 'two',
    reasoning: 'hm',
    probs: [['two', -0.5, [['two', -0.5]]]],
    stats: { seed: 7 }
  });
  addNode(chat, a.id, 'user', { text: 'three' });
  addNode(chat, -1, 'user', { text: 'other' });
  return chat;
}

test('versions branch and the choice is kept', () => {
  const chat = sample();
  assert.deepEqual(
    pathOf(chat).map(n => n.text),
    ['other']
  );
  assert.equal(versionsOf(chat, chat.nodes[3]).count, 2);
  chat.chosen[-1] = 0;
  assert.deepEqual(
    pathOf(chat).map(n => n.text),
    ['one', 'two', 'three']
  );
  chat.chosen[-1] = 2; // not a child: the newest is taken
  assert.deepEqual(
    pathOf(chat).map(n => n.text),
    ['other']
  );
});

test('messages of a request', () => {
  const chat = sample();
  chat.chosen[-1] = 0;
  chat.system = 'be brief';
  const failed = addNode(chat, 2, 'assistant', { error: { kind: 'gone' } });
  addNode(chat, failed.id, 'user', { text: 'four' });
  assert.deepEqual(messagesOf(chat, pathOf(chat)), [
    { role: 'system', content: 'be brief' },
    {
      role: 'user',
      content: [
        { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } },
        { type: 'text', text: 'one' }
      ]
    },
    { role: 'assistant', content: 'two', reasoning_content: 'hm' },
    { role: 'user', content: 'three\n\nfour' }
  ]);
});

test('the oldest turns are left out, never the last question', () => {
  const chat = newChat();
  let parent = -1;
  for (let i = 0; i < 10; i++)
    parent = addNode(chat, parent, i % 2 ? 'assistant' : 'user', { text: 'x'.repeat(1000) }).id;
  addNode(chat, parent, 'user', { text: 'last' });
  assert.ok(leaveOutOldest(chat, pathOf(chat), 5000, 4096));
  assert.ok(chat.from > 0 && chat.nodes[chat.from].role === 'user');
  while (leaveOutOldest(chat, pathOf(chat), 5000, 10)) assert.ok(chat.from <= 10);
  assert.equal(canLeaveOut(chat, pathOf(chat)), false);
  assert.deepEqual(messagesOf(chat, pathOf(chat)), [{ role: 'user', content: 'last' }]);
});

test('what is left out is judged by everything that is sent', () => {
  const turns = more => {
    const chat = Object.assign(newChat(), more);
    let parent = -1;
    for (let i = 0; i < 20; i++)
      parent = addNode(chat, parent, i % 2 ? 'assistant' : 'user', { text: 'x'.repeat(984) }).id;
    addNode(chat, parent, 'user', { text: 'last' });
    assert.ok(leaveOutOldest(chat, pathOf(chat), 4000, 4000)); // to three quarters of what there is
    return chat.from;
  };
  assert.equal(turns({}), 6);
  assert.equal(turns({ system: 'y'.repeat(20000) }), 12); // it takes half and stays
  let steps = 0;
  const chat = newChat();
  for (let i = 0, parent = -1; i < 40; i++) parent = addNode(chat, parent, 'user', { text: '' }).id;
  while (leaveOutOldest(chat, pathOf(chat), 0, 0)) assert.ok(++steps < 40, 'it does not end');
  assert.equal(chat.from, 39);
});

test('settings that cannot be sent are told by name', () => {
  const chat = sample();
  assert.deepEqual(wrongSettings(chat, { sampling: { temperature: '', seed: '7', top_k: ' 3 ' } }), []);
  Object.assign(chat, { schema: '{"type":', tools: '{}' });
  const wrong = wrongSettings(chat, { sampling: { top_k: '-3', temperature: 'hot' } });
  assert.deepEqual(
    wrong.map(f => f.name),
    ['schema', 'tools', 'temperature', 'top_k']
  );
  assert.ok(wrong.every(f => f.label && f.problem));
});

test('why an answer would be the same again', () => {
  const why = (sampling, own = {}) => whySame({ sampling }, own)?.change;
  assert.equal(why({}), undefined);
  assert.equal(why({}, { temperature: 0.7, top_k: 20 }), undefined);
  assert.equal(why({ temperature: '0.5' }, { temperature: 0 }), undefined);
  assert.deepEqual(why({}, { temperature: 0 }), { temperature: 0.8, seed: null });
  assert.deepEqual(why({ temperature: '0', seed: '5' }, { temperature: 1 }), { temperature: 0.8, seed: null });
  assert.deepEqual(why({ top_k: '1' }, { temperature: 1 }), { top_k: 40, seed: null });
  assert.deepEqual(why({ seed: '0' }, { temperature: 1 }), { seed: null });
  const body = requestBody(sample(), [], { sampling: { seed: '7', top_p: '0.5' } }, 'm', {
    temperature: 0.8,
    seed: null
  });
  assert.deepEqual([body.temperature, body.seed, body.top_p], [0.8, undefined, 0.5]);
});

test('empty settings are not sent', () => {
  const chat = sample();
  const prefs = { sampling: { temperature: '', top_k: 'many', seed: '7', min_p: '0.1' }, thinking: 'off', probs: true };
  const body = requestBody(chat, pathOf(chat), prefs, 'm');
  assert.deepEqual([body.temperature, body.top_k, body.seed, body.min_p], [undefined, undefined, 7, 0.1]);
  assert.deepEqual(
    [body.chat_template_kwargs, body.top_logprobs, body.tools],
    [{ enable_thinking: false }, 5, undefined]
  );
  Object.assign(chat, { tools: '[{"name": "f", "parameters": {}}]', schema: '{"type": "object"}' });
  const more = requestBody(chat, [], { sampling: {} }, 'm');
  assert.deepEqual(more.tools, [{ type: 'function', function: { name: 'f', parameters: {} } }]);
  assert.deepEqual(more.response_format.json_schema.schema, { type: 'object' });
  const seed = SAMPLING.find(field => field.name === 'seed');
  assert.deepEqual(
    ['', '1', '1.5', '-1', 'x'].map(text => readSampling(seed, text)),
    [null, 1, undefined, undefined, undefined]
  );
});

test('titles', () => {
  assert.equal(titleFrom('  a  b\nc'), 'a b');
  assert.equal(titleFrom('x'.repeat(100)).length, 60);
});

// ---- import ----

test('export and import give the same conversation', () => {
  const chat = sample();
  const [back] = importText(exportText([chat]));
  assert.notEqual(back.id, chat.id);
  for (const name of ['title', 'system', 'from']) assert.deepEqual(back[name], chat[name]);
  assert.deepEqual(back.chosen, { ...chat.chosen });
  assert.deepEqual(
    back.nodes.map(n => [n.role, n.text, n.parent]),
    chat.nodes.map(n => [n.role, n.text, n.parent])
  );
  assert.deepEqual(
    [back.nodes[0].images, back.nodes[1].probs, back.nodes[1].stats],
    [chat.nodes[0].images, chat.nodes[1].probs, { seed: 7 }]
  );
});

const file = (nodes, more = {}) =>
  JSON.stringify({ format: 'quern-conversations', version: 1, conversations: [{ title: 't', nodes, ...more }] });
const HOSTILE = [
  ['nothing', '', /not JSON/],
  ['a number', '3', /not an export/],
  ['another format', '{"format": "x"}', /not an export/],
  ['another version', '{"format": "quern-conversations", "version": 2}', /version 2/],
  ['no list', '{"format": "quern-conversations", "version": 1, "conversations": {}}', /expected a list/],
  ['deep nesting', `${'['.repeat(200000)}`, /not JSON/],
  ['a role', file([{ role: 'system', parent: -1 }]), /role is "system"/],
  ['a cycle', file([{ role: 'user', parent: 0 }]), /parent is 0; expected -1 to -1/],
  [
    'a parent that comes later',
    file([
      { role: 'user', parent: 1 },
      { role: 'user', parent: -1 }
    ]),
    /parent is 1/
  ],
  ['text that is a number', file([{ role: 'user', parent: -1, text: 5 }]), /text is 5/],
  ['a long text', file([{ role: 'user', parent: -1, text: 'x'.repeat(LIMITS.text + 1) }]), /at most/],
  ['an image elsewhere', file([{ role: 'user', parent: -1, images: ['https://a.b/c.png'] }]), /not a PNG/],
  [
    'an image with a script',
    file([{ role: 'user', parent: -1, images: ['data:image/svg+xml;base64,AAAA'] }]),
    /not a PNG/
  ],
  ['many messages', file(Array(LIMITS.nodes + 1).fill({ role: 'user', parent: -1 })), /5001 entries/],
  ['probabilities', file([{ role: 'assistant', parent: -1, probs: [{}] }]), /probs/]
];
for (const [name, text, message] of HOSTILE)
  test(`import refuses ${name}`, () => assert.throws(() => importText(text), message));

test('import takes only the fields it knows', () => {
  const [chat] = importText(
    file([{ role: 'user', parent: -1, text: 'a', __proto__: { x: 1 }, onclick: 'b', id: 77 }], {
      chosen: { '-1': 99, __proto__: 5 },
      from: 99,
      id: 'mine'
    })
  );
  assert.deepEqual(Object.keys(chat.nodes[0]).sort(), ['id', 'images', 'parent', 'role', 'text', 'time']);
  assert.deepEqual([chat.nodes[0].id, chat.chosen, chat.from, {}.x], [0, {}, -1, undefined]);
  assert.notEqual(chat.id, 'mine');
});

process.exit(failed ? 1 : 0);
