// Conversations: send, stream, stop, edit, branch, settings, errors, what is kept.

import { readFile } from 'node:fs/promises';
import { check, equal, realUrl, runAll, test, until } from './harness.mjs';

const PIXEL = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==',
  'base64'
);

test('a question gets an answer, and a reload keeps both', { real: true }, async ({ ui }) => {
  await ui.ask('say The *stone* turns.');
  const answer = await ui.answer();
  if (!realUrl) equal(answer, 'The stone turns.', 'answer');
  equal(await ui.messages(), 2, 'messages');
  check((await ui.text('.stats')).includes('tokens/s'), 'no speed is shown');
  await ui.reload();
  equal(await ui.messages(), 2, 'messages after a reload');
  equal(await ui.answer(), answer, 'answer after a reload');
  equal((await ui.names()).length, 1, 'conversations');
});

test('an answer grows while it comes, and stops', async ({ page, ui, mock }) => {
  await ui.ask(`slow ${'grain '.repeat(400)}`, false);
  const sizeOf = () => page.evaluate(() => document.querySelector('article.assistant').textContent.length);
  await page.waitForFunction(() => document.querySelector('article.assistant .markdown').textContent.length > 10);
  const first = await sizeOf();
  await page.waitForFunction(n => document.querySelector('article.assistant').textContent.length > n + 5, first);
  await page.press('#prompt', 'Escape');
  await ui.idle();
  check((await ui.text('.stats')).includes('Stopped'), 'it does not say that it was stopped');
  await until(() => mock.open === 0, 'the request is still open');
});

test('a reload in the middle keeps what came', async ({ page, ui }) => {
  await ui.askSlowly();
  await until(
    async () => (await ui.stored())[0]?.nodes[1]?.text.length > 20,
    'the answer is not stored while it grows'
  );
  await ui.reload();
  check((await ui.answer()).startsWith('grain grain'), 'the answer is gone');
});

test('editing a question makes a branch', { real: true }, async ({ page, ui }) => {
  await ui.ask('say one');
  await ui.ask('say two');
  await page.locator('article.user').first().hover();
  await page.locator('article.user').first().getByRole('button', { name: 'Edit the question' }).click();
  await ui.key('Control+a');
  await ui.type('say three');
  await ui.key('Enter');
  await ui.count('article.message', 2);
  await ui.idle();
  const place = page.locator('article.user .versions span');
  equal(await place.innerText(), '2/2', 'version');
  await ui.press('Previous version');
  equal(await place.innerText(), '1/2', 'version after going back');
  equal(await ui.messages(), 4, 'messages of the first branch');
  await ui.reload();
  equal(await ui.messages(), 4, 'messages after a reload');
});

test('answering again makes a version', { real: true }, async ({ page, ui }) => {
  await ui.ask('say one');
  await ui.press('Answer again');
  await page.waitForSelector('article.assistant .versions');
  await ui.idle();
  equal(await ui.text('article.assistant .versions span'), '2/2', 'version');
});

test('settings reach the request and stay', async ({ page, ui, mock }) => {
  await page.click('#open-settings');
  await ui.field('System prompt').fill('Be brief.');
  await ui.field('Temperature').fill('0.2');
  await ui.field('Top-k').fill('-3');
  equal(await ui.field('Top-k').getAttribute('aria-invalid'), 'true', 'a wrong value is marked');
  await ui.field('Top-k').fill('');
  await ui.field('Seed').fill('42');
  await ui.field('JSON schema').fill('{"type":');
  equal(await ui.field('JSON schema').getAttribute('aria-invalid'), 'true', 'half a schema is marked');
  await ui.field('JSON schema').fill('{"type": "object"}');
  await ui.field('Tools').fill('[{"name": "f"}]');
  await page.getByRole('radio', { name: 'Off' }).check();
  await ui.key('Escape');
  await ui.ask('say hi');
  const [body] = mock.requests;
  equal(
    [body.messages[0], body.temperature, body.top_k, body.seed],
    [{ role: 'system', content: 'Be brief.' }, 0.2, undefined, 42],
    'settings'
  );
  equal(
    [body.response_format.type, body.tools[0].function.name, body.chat_template_kwargs],
    ['json_schema', 'f', { enable_thinking: false }],
    'more settings'
  );
  await ui.reload();
  await page.click('#open-settings');
  equal(await ui.field('Temperature').inputValue(), '0.2', 'temperature after a reload');
  equal(await ui.field('System prompt').inputValue(), 'Be brief.', 'system prompt after a reload');
});

test('reasoning folds when the answer begins', async ({ page, ui }) => {
  await ui.ask('think');
  const fold = page.locator('details.fold');
  check((await fold.locator('summary').innerText()).includes('12 tokens'), 'the size of the reasoning is not told');
  equal(await fold.evaluate(node => node.open), false, 'fold is open');
  await fold.locator('summary').click();
  check((await fold.innerText()).includes('Three switches'), 'reasoning is not shown');
});

test('a tool call takes its result and goes on', async ({ page, ui, mock }) => {
  await ui.ask('tool');
  await page.locator('details.fold summary').click();
  check((await ui.text('details.fold')).includes('"city": "Ghent"'), 'arguments are not shown');
  await ui.field('Result of weather').fill('rain');
  await ui.press('Send result');
  await ui.count('article.assistant', 2);
  await ui.idle();
  equal(mock.requests[1].messages.slice(-1), [{ role: 'tool', tool_call_id: 'call_1', content: 'rain' }], 'result');
  equal(await ui.answer(), 'The tool has answered.', 'answer');
});

test('token probabilities', async ({ page, ui, mock }) => {
  await page.click('#open-settings');
  await ui.field('Token probabilities').check();
  await ui.key('Escape');
  await ui.ask('say one two three');
  equal([mock.requests[0].logprobs, mock.requests[0].top_logprobs], [true, 5], 'request');
  const tokens = page.locator('.tokens span');
  equal(await tokens.count(), 3, 'tokens');
  await tokens.first().focus();
  await ui.key('ArrowRight');
  check((await ui.text('#chances')).replace(/\s+/g, ' ').includes('other 27 %'), 'alternatives of the second token');
  await ui.press('Token probabilities');
  equal(await ui.answer(), 'one two three', 'the text view');
});

test('images are sent as data', async ({ page, ui, mock }) => {
  const file = (name, mimeType, buffer) => ({ name, mimeType, buffer });
  await page.setInputFiles('#image-file', [
    file('a.png', 'image/png', PIXEL),
    file('b.svg', 'image/svg+xml', Buffer.from('<svg/>'))
  ]);
  await page.waitForSelector('.thumb');
  check((await ui.text('.toast')).includes('b.svg is not a PNG'), 'a wrong file is not told');
  await page.setInputFiles(
    '#image-file',
    Array.from({ length: 9 }, (_, i) => file(`${i}.png`, 'image/png', PIXEL))
  );
  await ui.count('.thumb', 8);
  await ui.press('Remove image 8');
  await ui.ask('say seen');
  const { content } = mock.requests[0].messages[0];
  equal(
    content.map(part => part.type),
    [...Array(7).fill('image_url'), 'text'],
    'parts'
  );
  equal(content[0].image_url.url, `data:image/png;base64,${PIXEL.toString('base64')}`, 'the bytes of the image');
});

test('a model without eyes takes no images', { server: { vision: false } }, async ({ page, ui }) => {
  equal(await page.locator('#attach').isVisible(), false, 'the button is shown');
  await page.setInputFiles('#image-file', [{ name: 'a.png', mimeType: 'image/png', buffer: PIXEL }]);
  check((await ui.text('.toast')).includes('cannot see'), 'it is not told');
});

test('models can be picked', async ({ page, ui, mock }) => {
  await page.selectOption('#model', 'husk-1b');
  await ui.ask('say hi');
  equal(mock.requests[0].model, 'husk-1b', 'model');
  await ui.reload();
  equal(await page.inputValue('#model'), 'husk-1b', 'model after a reload');
});

test('a server that is gone comes back', async ({ page, ui, mock }) => {
  mock.down = true;
  await ui.ask('say hi');
  await page.waitForSelector('#banner:not([hidden])');
  mock.down = false;
  await ui.press('Try now');
  await page.waitForSelector('#banner', { state: 'hidden' });
  await ui.press('Try again');
  await page.waitForFunction(() => document.querySelector('article.assistant .markdown').textContent === 'hi');
  equal(await ui.messages(), 2, 'messages');
});

test('a full server is asked again', async ({ page, ui, mock }) => {
  await ui.ask('busy', false);
  await page.waitForFunction(() => document.querySelector('.working').textContent.includes('Asking again in'));
  await ui.idle();
  equal(mock.requests.length, 3, 'requests');
});

test('a conversation that is too long drops its oldest turns', async ({ page, ui, mock }) => {
  await ui.ask('say one');
  await ui.ask('say two');
  await ui.ask('overflow');
  const text = await ui.text('.problem');
  check(text.includes('5,000') && text.includes('4,096'), 'both numbers are told');
  await ui.press('Leave out the oldest turns');
  await page.waitForSelector('.cut');
  await ui.idle();
  check(mock.requests[mock.requests.length - 1].messages.length < 4, 'nothing was left out');
  equal(await page.locator('.problem:visible').count(), 0, 'problems');
});

test('errors say what happened', async ({ ui }) => {
  for (const [word, text] of [
    ['refuse', 'temperature is 99'],
    ['drop', 'connection broke'],
    ['fail', 'the device was lost']
  ]) {
    await ui.ask(word);
    check((await ui.text('.problem')).includes(text), `${word}: it does not say ${text}`);
    if (word === 'drop') equal(await ui.answer(), 'The connection will', 'what came before the break');
    await ui.press('New conversation');
  }
});

test('the key is asked for, and kept for the tab', { key: true, server: { key: 'secret' } }, async ({ page, ui }) => {
  await ui.field('API key').fill('wrong');
  await ui.key('Enter');
  await page.waitForFunction(() => document.querySelector('#key-note')?.textContent.includes('did not accept'));
  await ui.field('API key').fill('secret');
  await ui.key('Enter');
  await ui.ready();
  await ui.ask('say hi');
  equal(await ui.answer(), 'hi', 'answer');
  equal(
    await page.evaluate(() => [sessionStorage.getItem('quern.key'), localStorage.getItem('quern.key')]),
    ['secret', null],
    'where the key is'
  );
  await ui.reload();
});

test('conversations: search, rename, delete and undo', async ({ page, ui }) => {
  await ui.ask('say the first answer');
  await ui.key('Control+Shift+O');
  await ui.ask('say another');
  equal(await ui.names(), ['say another', 'say the first answer'], 'list');
  await ui.key('Control+k');
  await ui.type('first ANSWER');
  await ui.count('.chat-item', 1);
  await ui.key('Enter');
  await page.waitForFunction(() => document.querySelector('h1').textContent === 'say the first answer');
  await page.fill('#search', '');
  await ui.count('.chat-item', 2);
  await ui.press('Rename say the first answer');
  await ui.type('Flour');
  await ui.key('Enter');
  await ui.press('Delete Flour');
  await ui.count('.chat-item', 1);
  equal((await ui.stored()).length, 1, 'stored conversations');
  await ui.press('Undo');
  await page.waitForFunction(() => document.querySelector('h1').textContent === 'Flour');
  equal(await ui.messages(), 2, 'messages after undo');
});

test('a conversation deleted in the middle of an answer stays away', async ({ page, ui, mock }) => {
  await ui.askSlowly();
  await page.clock.install();
  await ui.press(/^Delete/);
  await until(() => mock.open === 0, 'the request is still open');
  await page.clock.runFor(5000);
  equal((await ui.stored()).length, 0, 'stored conversations');
});

test('an answer goes on while another conversation is open', async ({ page, ui }) => {
  await ui.ask(`slow ${'grain '.repeat(40)}`, false);
  await ui.press('New conversation');
  await ui.ask('say other');
  equal(await ui.answer(), 'other', 'answer');
  await page.locator('.chat-item .open', { hasText: 'slow' }).click();
  await ui.idle();
  equal((await ui.answer()).split(' ').length, 40, 'words of the first answer');
});

test('export and import', async ({ page, ui }) => {
  await ui.ask('tour');
  await ui.ask('think');
  const [download] = await Promise.all([page.waitForEvent('download'), ui.press('Export all conversations')]);
  const text = await readFile(await download.path());
  const before = await ui.text('#thread');
  await ui.press('Delete tour');
  await ui.count('.chat-item', 0);
  await page.setInputFiles('#import-file', { name: 'x.json', mimeType: 'application/json', buffer: text });
  await page.locator('.chat-item .open').click();
  await page.waitForSelector('article.assistant');
  equal(await ui.text('#thread'), before, 'the conversation');
});

// Feeds the text to the view of a growing answer in pieces; gives the tree and the nodes made on the way.
const grow = (page, text, step) =>
  page.evaluate(
    async ([text, step]) => {
      const { StreamView } = await import(new URL('page/render.js', location));
      const node = document.createElement('div');
      const watch = new MutationObserver(() => {});
      watch.observe(node, { childList: true, subtree: true });
      const view = new StreamView(node);
      for (let end = step; end < text.length; end += step) view.update(text.slice(0, end));
      view.update(text, true);
      const added = watch.takeRecords().flatMap(record => [...record.addedNodes]);
      const made = added.reduce((sum, n) => sum + 1 + (n.querySelectorAll?.('*').length || 0), 0);
      return { html: node.innerHTML, made, shown: node.querySelectorAll('*').length };
    },
    [text, step]
  );

// A piece of the text, and how many nodes may be made for one that is shown.
const LONG = {
  paragraphs: ['one **two** three four\n\n', 8],
  'a list': ['- one **two** three\n', 8],
  'a list of lists': ['1. one\n   - two\n   - three\n', 8],
  code: ['```c\nint one = 2; // three\n', 8],
  'one paragraph': ['one **two** three ', 256]
};

for (const [name, [piece, limit]] of Object.entries(LONG)) {
  test(`a long answer makes nodes in proportion: ${name}`, async ({ page }) => {
    const text = piece.startsWith('```') ? piece + piece.slice(5).repeat(2000) : piece.repeat(2000);
    const { made, shown } = await grow(page, text, 16);
    check(made < limit * shown, `${made} nodes made for ${shown}`);
  });
}

test('a text in pieces ends up like the whole', async ({ page, ui }) => {
  await ui.ask('tour');
  const [{ nodes }] = await ui.stored();
  const odd =
    '1. a\n2. b\n\n   c\n   - d\n   - e\n3. f\n\n- x\n```py\na = 1\n``\n```\n~~~\nb\n~~~\n| a |\n|---|\n| b |\n\n' +
    '> q\n> r\n\n### h\n# i\n* y\n* z\n\n  w\n+ v\n\n\n$$\nx\n$$\n`a` **b\nc** ```\n```\nopen';
  for (const text of [nodes[1].text, odd, odd.replaceAll('\n', '\r\n')]) {
    const whole = await grow(page, text, text.length);
    check(whole.shown > 20, 'nothing is shown');
    for (let step = 1; step < 12; step++) equal((await grow(page, text, step)).html, whole.html, `pieces of ${step}`);
  }
});

test('without a database conversations live in memory', async ({ page, ui }) => {
  await page.addInitScript(() => Object.defineProperty(globalThis, 'indexedDB', { value: undefined }));
  await ui.reload();
  await page.waitForSelector('#memory-note:not([hidden])');
  await ui.ask('say hi');
  equal(await ui.names(), ['say hi'], 'list');
});

await runAll();
