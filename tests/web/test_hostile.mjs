// What a model or a file may hold to do harm: it is shown as text, and the page goes on.

import { check, equal, runAll, test } from './harness.mjs';

const HARM = [
  '<script>globalThis.harm = 1</script>',
  '<img src=x onerror="globalThis.harm=1">',
  '<svg onload=globalThis.harm=1><style>*{display:none}</style>',
  '<iframe src="javascript:parent.harm=1"></iframe>',
  '[click](javascript:globalThis.harm=1)',
  '[click](data:text/html,<script>opener.harm=1</script>)',
  '![x](https://example.org/track.png)',
  '[![x](https://example.org/track.png)](javascript:globalThis.harm=1)',
  '<https://example.org/"onmouseover="globalThis.harm=1>',
  '```"><script>globalThis.harm=1</script>',
  '`<b>` **<b>** | <b> |',
  '</div></article><base href="https://example.org">'
];

const SAFE_TAGS = new Set(
  'P,H3,H4,H5,H6,HR,DIV,BLOCKQUOTE,FIGURE,FIGCAPTION,PRE,CODE,SPAN,UL,OL,LI,TABLE,THEAD,TBODY,TR,TH,TD,EM,STRONG,DEL,BR,A,BUTTON,INPUT,svg,path,math,mrow,mi,mn,mo,mtext,mfrac,msub,msup'.split(
    ','
  )
);

test('markup in an answer is text', async ({ page, ui }) => {
  for (const text of HARM) {
    await ui.ask(`say ${text}`);
    const shown = await ui.answer();
    const plain = text.replace(/[`*]/g, '').replace(/!?\[.*/, '');
    if (plain.startsWith('<') && !plain.startsWith('<https'))
      check(shown.includes(plain.slice(0, 20)), `${text} shows as ${shown}`);
  }
  const tags = await page.evaluate(() => [
    ...new Set([...document.querySelectorAll('.markdown *')].map(node => node.tagName))
  ]);
  equal(
    tags.filter(tag => !SAFE_TAGS.has(tag)),
    [],
    'elements that Markdown does not make'
  );
  const links = await page.evaluate(() =>
    [...document.querySelectorAll('.markdown a')].map(a => [a.protocol, a.rel, a.target])
  );
  for (const link of links) equal(link, ['https:', 'noopener noreferrer', '_blank'], 'link');
  check(links.length >= 2, 'good links are gone');
  equal(await page.evaluate(() => globalThis.harm), undefined, 'a script ran');
  equal(
    await page.evaluate(
      () => document.querySelectorAll('.markdown :is([onerror], [onload], [onmouseover], [style], img, script)').length
    ),
    0,
    'elements that do harm'
  );
});

test('markup in questions, titles and reasoning is text', async ({ page, ui }) => {
  await ui.ask('<img src=x onerror="globalThis.harm=1"> <b>tour</b>');
  equal(await ui.text('article.user .bubble'), '<img src=x onerror="globalThis.harm=1"> <b>tour</b>', 'question');
  check((await ui.text('h1')).startsWith('<img src=x'), 'title');
  check((await ui.names())[0].startsWith('<img src=x'), 'list');
  equal(await page.evaluate(() => globalThis.harm), undefined, 'a script ran');
});

const BOMBS = {
  asterisks: '*'.repeat(100000),
  'quotes in quotes': `${'>'.repeat(50000)} end`,
  'lists in lists': Array.from({ length: 400 }, (_, i) => `${' '.repeat(2 * i)}- x`).join('\\n'),
  'a wide table': `|${'a|'.repeat(20000)}\\n|${'-|'.repeat(20000)}`,
  'a long table': `|a|b|\\n|-|-|\\n${'|c|d|\\n'.repeat(5000)}`,
  'open brackets': '['.repeat(50000),
  emphasis: '*a **b '.repeat(10000),
  'a line of code': `\`\`\`js\\n${'("'.repeat(30000)}`
};

for (const [name, text] of Object.entries(BOMBS)) {
  test(`Markdown bomb: ${name}`, async ({ page, ui }) => {
    await ui.ask(`say ${text}`);
    const { depth, count } = await page.evaluate(() => {
      const all = [...document.querySelectorAll('article.assistant .markdown *')];
      const depthOf = node => (node.classList.contains('markdown') ? 0 : 1 + depthOf(node.parentElement));
      return { depth: Math.max(0, ...all.map(depthOf)), count: all.length };
    });
    check(depth < 120, `elements nest ${depth} deep`);
    check(count < 60000, `${count} elements`);
    await ui.ask('say still here');
    equal(await ui.answer(), 'still here', 'the next answer');
  });
}

test('odd chunks do not break an answer', async ({ page, ui }) => {
  const chunks = [
    {},
    { choices: null },
    { choices: [null] },
    { choices: [{}] },
    { choices: [{ delta: null }] },
    { choices: [{ delta: { content: 5 } }] },
    { choices: [{ delta: { tool_calls: 'x' } }] },
    { choices: [{ delta: { tool_calls: [{ index: 1e9, function: { name: '__proto__' } }, {}] } }] },
    { choices: [{ delta: { content: 'ok' }, logprobs: { content: 'x' } }] },
    { usage: {}, timings: {}, seed: 'x', prompt_progress: {} }
  ];
  const body = `${chunks.map(chunk => `data: ${JSON.stringify(chunk)}\n\n`).join('')}: ping\n\ndata: [DONE]\n\n`;
  await page.route('**/v1/chat/completions', route => route.fulfill({ contentType: 'text/event-stream', body }));
  await ui.ask('hello');
  equal(await ui.answer(), 'ok', 'answer');
});

test('odd answers of the server are told', async ({ page, ui }) => {
  const replies = [
    { status: 500, body: '<html>oops' },
    { status: 400, contentType: 'application/json', body: '{"error": "text"}' },
    { status: 200, contentType: 'text/event-stream', body: 'data: {not json\n\n' },
    { status: 200, contentType: 'text/event-stream', body: '' }
  ];
  for (const reply of replies) {
    await page.route('**/v1/chat/completions', route => route.fulfill(reply), { times: 1 });
    await ui.ask('hello');
    check(await page.locator('.problem').last().isVisible(), `${reply.status} ${reply.body}`);
  }
});

const importFile = (page, text) =>
  page.setInputFiles('#import-file', { name: 'x.json', mimeType: 'application/json', buffer: Buffer.from(text) });

test('a hostile file changes nothing', async ({ page, ui }) => {
  await ui.ask('say mine');
  const before = JSON.stringify(await ui.stored());
  for (const text of [
    '',
    '[]',
    '{"format":"quern-conversations","version":1,"conversations":[{"nodes":[{"role":"user","parent":7}]}]}',
    '['.repeat(300000)
  ]) {
    await importFile(page, text);
    await page.waitForFunction(() => document.querySelector('.toast')?.textContent.includes('Nothing was imported'));
    await page.locator('.toast button').click();
  }
  equal(JSON.stringify(await ui.stored()), before, 'what is stored');
});

test('an imported conversation is shown as text', async ({ page, ui }) => {
  const html = '<img src=x onerror="globalThis.harm=1">';
  let nodes = [
    { role: 'user', parent: -1, text: html },
    {
      role: 'assistant',
      parent: 0,
      text: `${html}\n\n[a](javascript:alert)`,
      reasoning: html,
      model: html,
      calls: [{ id: html, name: html, arguments: '```\n"' }],
      stats: { seed: html, speed: 'x' }
    },
    { role: 'tool', parent: 1, text: html, name: html }
  ];
  for (let i = 3; i < 1500; i++) nodes.push({ role: i % 2 ? 'assistant' : 'user', parent: i - 1, text: `# ${i}` });
  nodes = JSON.parse(JSON.stringify(nodes));
  await importFile(
    page,
    JSON.stringify({ format: 'quern-conversations', version: 1, conversations: [{ title: html, nodes, id: 'x' }] })
  );
  await page.locator('.chat-item .open').click();
  await page.waitForSelector('article.assistant');
  check((await ui.messages()) <= 200, 'all messages are made at once');
  await ui.press(/earlier messages/);
  equal(await ui.messages(), 1500, 'messages');
  equal(
    await page.evaluate(() => [globalThis.harm, document.querySelectorAll('#thread img:not([src^=page])').length]),
    [undefined, 0],
    'harm'
  );
});

test('hostile things in the storage do not stop the page', async ({ page, ui }) => {
  await page.evaluate(() => {
    localStorage.setItem('quern.prefs', '{"theme": 5, "sampling": [1], "model": {}, "thinking": "x"}');
    location.hash = '#nobody';
  });
  await ui.reload();
  await ui.ask('say hi');
  equal(await ui.answer(), 'hi', 'answer');
  await page.evaluate(() => localStorage.setItem('quern.prefs', '{'));
  await ui.reload();
  await ui.idle();
});

await runAll();
