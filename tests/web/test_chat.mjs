// Conversations: send, stream, stop, edit, branch, settings, errors, what is kept.

import { readFile } from 'node:fs/promises';
import {
  ask,
  chatNames,
  check,
  equal,
  idle,
  lastAnswer,
  messages,
  ready,
  realUrl,
  runAll,
  stored,
  test
} from './harness.mjs';

const PIXEL = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==',
  'base64'
);

test('a question gets an answer, and a reload keeps both', async ({ page }) => {
  await ask(page, 'say The *stone* turns.');
  const answer = await lastAnswer(page);
  if (!realUrl) equal(answer, 'The stone turns.', 'answer');
  equal(await messages(page), 2, 'messages');
  check((await page.locator('.stats').innerText()).includes('tokens/s'), 'no speed is shown');
  await page.reload();
  await ready(page);
  equal(await messages(page), 2, 'messages after a reload');
  equal(await lastAnswer(page), answer, 'answer after a reload');
  equal((await chatNames(page)).length, 1, 'conversations');
});

test('an answer grows while it comes, and stops', async ({ page, mock }) => {
  await ask(page, realUrl ? 'Count to one thousand.' : `slow ${'grain '.repeat(400)}`, false);
  const sizeOf = () => page.evaluate(() => document.querySelector('article.assistant').textContent.length);
  await page.waitForFunction(() => document.querySelector('article.assistant .markdown').textContent.length > 10);
  const first = await sizeOf();
  await page.waitForFunction(n => document.querySelector('article.assistant').textContent.length > n + 5, first);
  await page.press('#prompt', 'Escape');
  await idle(page);
  check((await page.locator('.stats').innerText()).includes('Stopped'), 'it does not say that it was stopped');
  if (mock) await until(() => mock.open === 0, 'the request is still open');
});

test('a reload in the middle keeps what came', { mock: true }, async ({ page }) => {
  await ask(page, `slow ${'grain '.repeat(400)}`, false);
  await page.waitForFunction(() => document.querySelector('article.assistant .markdown').textContent.length > 20);
  await until(
    async () => (await stored(page))[0]?.nodes[1]?.text.length > 20,
    'the answer is not stored while it grows'
  );
  await page.reload();
  await ready(page);
  check((await lastAnswer(page)).startsWith('grain grain'), 'the answer is gone');
});

test('editing a question makes a branch', async ({ page }) => {
  await ask(page, 'say one');
  await ask(page, 'say two');
  await page.locator('article.user').first().hover();
  await page.locator('article.user').first().getByRole('button', { name: 'Edit the question' }).click();
  await page.keyboard.press('Control+a');
  await page.keyboard.type('say three');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.querySelectorAll('article.message').length === 2);
  await idle(page);
  const place = page.locator('article.user .versions span');
  equal(await place.innerText(), '2/2', 'version');
  await page.getByRole('button', { name: 'Previous version' }).click();
  equal(await place.innerText(), '1/2', 'version after going back');
  equal(await messages(page), 4, 'messages of the first branch');
  await page.reload();
  await ready(page);
  equal(await messages(page), 4, 'messages after a reload');
});

test('answering again makes a version', async ({ page }) => {
  await ask(page, 'say one');
  await page.getByRole('button', { name: 'Answer again' }).click();
  await page.waitForSelector('article.assistant .versions');
  await idle(page);
  equal(await page.locator('article.assistant .versions span').innerText(), '2/2', 'version');
});

test('settings reach the request and stay', { mock: true }, async ({ page, mock }) => {
  await page.click('#open-settings');
  await page.getByLabel('System prompt').fill('Be brief.');
  await page.getByLabel('Temperature').fill('0.2');
  await page.getByLabel('Top-k').fill('-3');
  equal(await page.getByLabel('Top-k').getAttribute('aria-invalid'), 'true', 'a wrong value is marked');
  await page.getByLabel('Top-k').fill('');
  await page.getByLabel('Seed').fill('42');
  await page.getByLabel('JSON schema').fill('{"type":');
  equal(await page.getByLabel('JSON schema').getAttribute('aria-invalid'), 'true', 'half a schema is marked');
  await page.getByLabel('JSON schema').fill('{"type": "object"}');
  await page.getByLabel('Tools').fill('[{"name": "f"}]');
  await page.getByRole('radio', { name: 'Off' }).check();
  await page.keyboard.press('Escape');
  await ask(page, 'say hi');
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
  await page.reload();
  await ready(page);
  await page.click('#open-settings');
  equal(await page.getByLabel('Temperature').inputValue(), '0.2', 'temperature after a reload');
  equal(await page.getByLabel('System prompt').inputValue(), 'Be brief.', 'system prompt after a reload');
});

test('reasoning folds when the answer begins', { mock: true }, async ({ page }) => {
  await ask(page, 'think');
  const fold = page.locator('details.fold');
  check((await fold.locator('summary').innerText()).includes('12 tokens'), 'the size of the reasoning is not told');
  equal(await fold.evaluate(node => node.open), false, 'fold is open');
  await fold.locator('summary').click();
  check((await fold.innerText()).includes('Three switches'), 'reasoning is not shown');
});

test('a tool call takes its result and goes on', { mock: true }, async ({ page, mock }) => {
  await ask(page, 'tool');
  await page.locator('details.fold summary').click();
  check((await page.locator('details.fold').innerText()).includes('"city": "Ghent"'), 'arguments are not shown');
  await page.getByLabel('Result of weather').fill('rain');
  await page.getByRole('button', { name: 'Send result' }).click();
  await page.waitForFunction(() => document.querySelectorAll('article.assistant').length === 2);
  await idle(page);
  equal(mock.requests[1].messages.slice(-1), [{ role: 'tool', tool_call_id: 'call_1', content: 'rain' }], 'result');
  equal(await lastAnswer(page), 'The tool has answered.', 'answer');
});

test('token probabilities', { mock: true }, async ({ page, mock }) => {
  await page.click('#open-settings');
  await page.getByLabel('Token probabilities').check();
  await page.keyboard.press('Escape');
  await ask(page, 'say one two three');
  equal([mock.requests[0].logprobs, mock.requests[0].top_logprobs], [true, 5], 'request');
  const tokens = page.locator('.tokens span');
  equal(await tokens.count(), 3, 'tokens');
  await tokens.first().focus();
  await page.keyboard.press('ArrowRight');
  check(
    (await page.locator('#chances').innerText()).replace(/\s+/g, ' ').includes('other 27 %'),
    'alternatives of the second token'
  );
  await page.getByRole('button', { name: 'Token probabilities' }).click();
  equal(await lastAnswer(page), 'one two three', 'the text view');
});

test('images are sent as data', { mock: true }, async ({ page, mock }) => {
  const file = (name, mimeType, buffer) => ({ name, mimeType, buffer });
  await page.setInputFiles('#image-file', [
    file('a.png', 'image/png', PIXEL),
    file('b.svg', 'image/svg+xml', Buffer.from('<svg/>'))
  ]);
  await page.waitForSelector('.thumb');
  check((await page.locator('.toast').innerText()).includes('b.svg is not a PNG'), 'a wrong file is not told');
  await page.setInputFiles(
    '#image-file',
    Array.from({ length: 9 }, (_, i) => file(`${i}.png`, 'image/png', PIXEL))
  );
  await page.waitForFunction(() => document.querySelectorAll('.thumb').length === 8);
  await page.getByRole('button', { name: 'Remove image 8' }).click();
  await ask(page, 'say seen');
  const { content } = mock.requests[0].messages[0];
  equal(
    content.map(part => part.type),
    [...Array(7).fill('image_url'), 'text'],
    'parts'
  );
  equal(content[0].image_url.url, `data:image/png;base64,${PIXEL.toString('base64')}`, 'the bytes of the image');
});

test('a model without eyes takes no images', { mock: true, server: { vision: false } }, async ({ page }) => {
  equal(await page.locator('#attach').isVisible(), false, 'the button is shown');
  await page.setInputFiles('#image-file', [{ name: 'a.png', mimeType: 'image/png', buffer: PIXEL }]);
  check((await page.locator('.toast').innerText()).includes('cannot see'), 'it is not told');
});

test('models can be picked', { mock: true }, async ({ page, mock }) => {
  await page.selectOption('#model', 'husk-1b');
  await ask(page, 'say hi');
  equal(mock.requests[0].model, 'husk-1b', 'model');
  await page.reload();
  await ready(page);
  equal(await page.inputValue('#model'), 'husk-1b', 'model after a reload');
});

test('a server that is gone comes back', { mock: true }, async ({ page, mock }) => {
  mock.down = true;
  await ask(page, 'say hi');
  await page.waitForSelector('#banner:not([hidden])');
  mock.down = false;
  await page.getByRole('button', { name: 'Try now' }).click();
  await page.waitForSelector('#banner', { state: 'hidden' });
  await page.getByRole('button', { name: 'Try again' }).click();
  await page.waitForFunction(() => document.querySelector('article.assistant .markdown').textContent === 'hi');
  equal(await messages(page), 2, 'messages');
});

test('a full server is asked again', { mock: true }, async ({ page, mock }) => {
  await ask(page, 'busy', false);
  await page.waitForFunction(() => document.querySelector('.working').textContent.includes('Asking again in'));
  await idle(page);
  equal(mock.requests.length, 3, 'requests');
});

test('a conversation that is too long drops its oldest turns', { mock: true }, async ({ page, mock }) => {
  await ask(page, 'say one');
  await ask(page, 'say two');
  await ask(page, 'overflow');
  const text = await page.locator('.problem').last().innerText();
  check(text.includes('5,000') && text.includes('4,096'), 'both numbers are told');
  await page.getByRole('button', { name: 'Leave out the oldest turns' }).click();
  await page.waitForSelector('.cut');
  await idle(page);
  check(mock.requests[mock.requests.length - 1].messages.length < 4, 'nothing was left out');
  equal(await page.locator('.problem:visible').count(), 0, 'problems');
});

test('errors say what happened', { mock: true }, async ({ page }) => {
  for (const [word, text] of [
    ['refuse', 'temperature is 99'],
    ['drop', 'connection broke'],
    ['fail', 'the device was lost']
  ]) {
    await ask(page, word);
    check((await page.locator('.problem').innerText()).includes(text), `${word}: it does not say ${text}`);
    if (word === 'drop') equal(await lastAnswer(page), 'The connection will', 'what came before the break');
    await page.getByRole('button', { name: 'New conversation' }).click();
  }
});

test(
  'the key is asked for, and kept for the tab',
  { mock: true, key: true, server: { key: 'secret' } },
  async ({ page }) => {
    await page.getByLabel('API key').fill('wrong');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.querySelector('#key-note')?.textContent.includes('did not accept'));
    await page.getByLabel('API key').fill('secret');
    await page.keyboard.press('Enter');
    await ready(page);
    await ask(page, 'say hi');
    equal(await lastAnswer(page), 'hi', 'answer');
    equal(
      await page.evaluate(() => [sessionStorage.getItem('quern.key'), localStorage.getItem('quern.key')]),
      ['secret', null],
      'where the key is'
    );
    await page.reload();
    await ready(page);
  }
);

test('conversations: search, rename, delete and undo', { mock: true }, async ({ page }) => {
  await ask(page, 'say the first answer');
  await page.keyboard.press('Control+Shift+O');
  await ask(page, 'say another');
  equal(await chatNames(page), ['say another', 'say the first answer'], 'list');
  await page.keyboard.press('Control+k');
  await page.keyboard.type('first ANSWER');
  await page.waitForFunction(() => document.querySelectorAll('.chat-item').length === 1);
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.querySelector('h1').textContent === 'say the first answer');
  await page.fill('#search', '');
  await page.waitForFunction(() => document.querySelectorAll('.chat-item').length === 2);
  await page.getByRole('button', { name: 'Rename say the first answer' }).click();
  await page.keyboard.type('Flour');
  await page.keyboard.press('Enter');
  await page.getByRole('button', { name: 'Delete Flour' }).click();
  await page.waitForFunction(() => document.querySelectorAll('.chat-item').length === 1);
  equal((await stored(page)).length, 1, 'stored conversations');
  await page.getByRole('button', { name: 'Undo' }).click();
  await page.waitForFunction(() => document.querySelector('h1').textContent === 'Flour');
  equal(await messages(page), 2, 'messages after undo');
});

test('a conversation deleted in the middle of an answer stays away', { mock: true }, async ({ page, mock }) => {
  await ask(page, `slow ${'grain '.repeat(400)}`, false);
  await page.waitForFunction(() => document.querySelector('article.assistant .markdown').textContent.length > 20);
  await page.clock.install();
  await page.getByRole('button', { name: /^Delete/ }).click();
  await until(() => mock.open === 0, 'the request is still open');
  await page.clock.runFor(5000);
  equal((await stored(page)).length, 0, 'stored conversations');
});

test('an answer goes on while another conversation is open', { mock: true }, async ({ page }) => {
  await ask(page, `slow ${'grain '.repeat(40)}`, false);
  await page.getByRole('button', { name: 'New conversation' }).click();
  await ask(page, 'say other');
  equal(await lastAnswer(page), 'other', 'answer');
  await page.locator('.chat-item .open', { hasText: 'slow' }).click();
  await idle(page);
  equal((await lastAnswer(page)).split(' ').length, 40, 'words of the first answer');
});

test('export and import', { mock: true }, async ({ page }) => {
  await ask(page, 'tour');
  await ask(page, 'think');
  const [download] = await Promise.all([
    page.waitForEvent('download'),
    page.getByRole('button', { name: 'Export all conversations' }).click()
  ]);
  const text = await readFile(await download.path());
  const before = await page.locator('#thread').innerText();
  await page.getByRole('button', { name: 'Delete tour' }).click();
  await page.waitForFunction(() => document.querySelectorAll('.chat-item').length === 0);
  await page.setInputFiles('#import-file', { name: 'x.json', mimeType: 'application/json', buffer: text });
  await page.locator('.chat-item .open').click();
  await page.waitForSelector('article.assistant');
  equal(await page.locator('#thread').innerText(), before, 'the conversation');
});

test('a long answer: finished blocks stay as they are', { mock: true }, async ({ page }) => {
  await page.evaluate(() => {
    globalThis.made = 0;
    new MutationObserver(list => list.forEach(m => (globalThis.made += m.addedNodes.length))).observe(
      document.getElementById('thread'),
      { childList: true, subtree: true }
    );
  });
  await ask(page, 'long 6000');
  equal(await page.locator('.markdown p').count(), 150, 'paragraphs');
  const made = await page.evaluate(() => globalThis.made);
  check(made < 4000, `${made} nodes were made for 150 paragraphs`);
});

test('a streamed text ends up like one that is shown at once', { mock: true }, async ({ page }) => {
  const tree = () =>
    page
      .locator('article.assistant .markdown')
      .first()
      .evaluate(node => node.innerHTML);
  await ask(page, 'tour');
  const streamed = await tree();
  await page.reload();
  await ready(page);
  equal(await tree(), streamed, 'the tour');
  const odd =
    '1. a\\n2. b\\n\\n   c\\n   - d\\n   - e\\n3. f\\n\\n- x\\n```py\\na = 1\\n```\\n| a |\\n|---|\\n| b |\\n\\n> q\\n> r\\n\\n* y\\n* z';
  await page.getByRole('button', { name: 'New conversation' }).click();
  await ask(page, `slow ${odd.replaceAll(' ', '  ')}`);
  const slow = await tree();
  await page.reload();
  await ready(page);
  equal(await tree(), slow, 'lists and tables');
});

test('without a database conversations live in memory', { mock: true }, async ({ page }) => {
  await page.addInitScript(() => Object.defineProperty(globalThis, 'indexedDB', { value: undefined }));
  await page.reload();
  await ready(page);
  await page.waitForSelector('#memory-note:not([hidden])');
  await ask(page, 'say hi');
  equal(await chatNames(page), ['say hi'], 'list');
});

async function until(condition, what) {
  for (let i = 0; i < 100; i++) {
    if (await condition()) return;
    await new Promise(resolve => setTimeout(resolve, 50));
  }
  throw new Error(what);
}

await runAll();
