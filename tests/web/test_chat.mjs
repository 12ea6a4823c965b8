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
  check((await ui.text('.problem')).includes('Incomplete'), 'it does not say that the answer is not complete');
  await page.locator('.problem').getByRole('button', { name: 'Answer again' }).click();
  await page.waitForSelector('#send[aria-label="Stop"]');
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

// The bundled model has temperature 0, which the page knows once the model is open.
test('answering again makes a version', { real: true }, async ({ page, ui }) => {
  await ui.ask('say one');
  await ui.press('Answer again');
  if (realUrl) await ui.press('Answer at temperature 0.8');
  await page.waitForSelector('article.assistant .versions');
  await ui.idle();
  equal(await ui.text('article.assistant .versions span'), '2/2', 'version');
});

const requestsOf = (mock, ...names) => mock.requests.map(body => names.map(name => body[name]));

test(
  'an answer that would be the same says so',
  { server: { params: { temperature: 0 } } },
  async ({ page, ui, mock }) => {
    await ui.ask('say one');
    await ui.press('Answer again');
    check((await ui.text('.same')).includes('At temperature 0'), 'it is not told');
    equal(mock.requests.length, 1, 'requests before a choice');
    equal(await page.evaluate(() => document.activeElement.textContent), 'Answer at temperature 0.8', 'focus');
    await ui.key('Enter');
    await page.waitForSelector('article.assistant .versions');
    await ui.idle();
    await ui.press('Answer again');
    await ui.press('Answer again anyway');
    await page.waitForFunction(() =>
      document.querySelector('article.assistant .versions')?.textContent.includes('3/3')
    );
    await ui.idle();
    equal(requestsOf(mock, 'temperature'), [[undefined], [0.8], [undefined]], 'temperatures');
    await page.click('#open-settings');
    await ui.field('Temperature').fill('1');
    await ui.key('Escape');
    await ui.press('Answer again');
    await page.waitForFunction(() =>
      document.querySelector('article.assistant .versions')?.textContent.includes('4/4')
    );
    await ui.idle();
    await page.click('#open-settings');
    await ui.field('Seed').fill('5');
    await ui.key('Escape');
    await ui.ask('say two');
    await page.locator('article.assistant').last().getByRole('button', { name: 'Answer again' }).click();
    await ui.press('Answer with another seed');
    await ui.count('article.assistant .versions', 2);
    await ui.idle();
    equal(
      requestsOf(mock, 'temperature', 'seed').slice(3),
      [
        [1, undefined],
        [1, 5],
        [1, undefined]
      ],
      'seeds'
    );
  }
);

for (const [label, bad, good] of [
  ['Top-k', '-3', '3'],
  ['JSON schema', '{"type":', '{"type": "object"}'],
  ['Tools', '{}', '[]']
]) {
  test(`a setting that is wrong keeps questions back: ${label}`, async ({ page, ui, mock }) => {
    await page.click('#open-settings');
    await ui.field(label).fill(bad);
    await ui.key('Escape');
    await page.waitForSelector(`#open-settings[aria-label="Settings. ${label}: not valid"]`);
    await page.fill('#prompt', 'say hi');
    await page.press('#prompt', 'Enter');
    await page.waitForSelector('#settings[open]');
    equal([mock.requests.length, await ui.messages()], [0, 0], 'what was sent');
    check((await ui.text('#settings [role=alert]')).includes(label), 'the dialog does not say why');
    const field = page.locator('#settings').getByLabel(label);
    equal(
      [await field.inputValue(), await field.getAttribute('aria-invalid')],
      [bad, 'true'],
      'the field as it was left'
    );
    check(await field.evaluate(node => node === document.activeElement), 'the field has no focus');
    await field.fill(good);
    await ui.key('Escape');
    await page.waitForSelector('#open-settings[aria-label="Settings"]');
    equal(await page.inputValue('#prompt'), 'say hi', 'the question is gone');
    await page.press('#prompt', 'Enter');
    await page.waitForSelector('article.assistant');
    await ui.idle();
    equal(mock.requests.length, 1, 'requests');
  });
}

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
  const isOpen = () =>
    page
      .locator('details.fold')
      .first()
      .evaluate(node => node.open);
  equal(await isOpen(), true, 'a call that waits for its result is open');
  check((await ui.text('details.fold')).includes('"city": "Ghent"'), 'arguments are not shown');
  check((await ui.text('.results')).includes('The model waits for this result'), 'it does not say what is wanted');
  await page.waitForFunction(() => document.getElementById('live').textContent.includes('calls weather and waits'));
  await ui.field('Result of weather').fill('rain');
  await ui.press('Send result');
  await ui.count('article.assistant', 2);
  await ui.idle();
  equal(mock.requests[1].messages.slice(-1), [{ role: 'tool', tool_call_id: 'call_1', content: 'rain' }], 'result');
  equal(await ui.answer(), 'The tool has answered.', 'answer');
  equal(await isOpen(), false, 'a call that is answered is folded');
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
  await page.focus('#prompt');
  await tokens.nth(2).hover();
  check((await ui.text('#chances')).replace(/\s+/g, ' ').includes('three 41 %'), 'alternatives under the pointer');
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

// Gives the page a file as the clipboard or a drag does.
const give = (page, type, target) =>
  page.evaluate(
    ([type, target, bytes]) => {
      const data = new DataTransfer();
      data.items.add(new File([Uint8Array.from(bytes)], 'a.png', { type: 'image/png' }));
      const name = type === 'paste' ? 'clipboardData' : 'dataTransfer';
      const Kind = type === 'paste' ? ClipboardEvent : DragEvent;
      document.querySelector(target).dispatchEvent(new Kind(type, { [name]: data, bubbles: true, cancelable: true }));
    },
    [type, target, [...PIXEL]]
  );

test('images are pasted and dropped', async ({ page, ui, mock }) => {
  await give(page, 'paste', '#prompt');
  await ui.count('.thumb', 1);
  await give(page, 'dragover', '#thread');
  check(await page.locator('#drop-note').isVisible(), 'it does not show where to drop');
  await give(page, 'drop', '#thread');
  await ui.count('.thumb', 2);
  equal(await page.locator('#drop-note').isVisible(), false, 'the note stays');
  await ui.ask('say seen');
  equal(
    mock.requests[0].messages[0].content.map(part => part.type),
    ['image_url', 'image_url', 'text'],
    'parts'
  );
});

test('images wait when a model without eyes is picked', async ({ page, ui, mock }) => {
  await give(page, 'paste', '#prompt');
  await ui.count('.thumb', 1);
  mock.vision = false;
  await page.selectOption('#model', 'husk-1b');
  await page.waitForSelector('#attach', { state: 'hidden' });
  await page.fill('#prompt', 'say hi');
  await page.press('#prompt', 'Enter');
  check((await ui.text('.toast')).includes('cannot see images'), 'it is not told');
  equal([mock.requests.length, await page.inputValue('#prompt')], [0, 'say hi'], 'what was sent');
  await ui.press('Remove image 1');
  await ui.ask('say hi');
  equal(mock.requests[0].messages, [{ role: 'user', content: 'say hi' }], 'without the image');
});

test('formulas are printed, or left as they are', async ({ page, ui }) => {
  await ui.ask('say $\\frac{a}{b}$ and $\\foo{a}$\\n\\n$$\\n\\sum_{i=1}^n i\\n$$');
  const seen = await page.evaluate(() =>
    [...document.querySelectorAll('.markdown .math')].map(node => {
      const box = node.querySelector('math')?.getBoundingClientRect();
      return box ? box.width > 5 && box.height > 12 : node.textContent;
    })
  );
  equal(seen, [true, '$\\foo{a}$', true], 'formulas');
  const tall = selector => page.locator(selector).evaluate(node => node.getBoundingClientRect().height);
  check((await tall('mfrac')) > 1.3 * (await tall('mfrac mi >> nth=0')), 'a fraction is flat');
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

const options = page => page.locator('#model option').evaluateAll(all => all.map(o => [o.text, o.disabled]));

test('models that cannot be opened are not picked', { server: { bad: ['chaff-7b'] } }, async ({ page, ui, mock }) => {
  equal(
    await options(page),
    [
      ['chaff-7b (cannot be opened)', true],
      ['grain-4b', false],
      ['husk-1b (not loaded)', false]
    ],
    'the list'
  );
  check((await page.getAttribute('#model option', 'title')).includes('ends too early'), 'the reason is not told');
  equal(await page.inputValue('#model'), 'grain-4b', 'the model that is picked');
  await page.selectOption('#model', 'husk-1b');
  await ui.ask('say hi');
  await until(async () => (await options(page))[2][0] === 'husk-1b', 'it does not show that the model is open now');
  mock.bad = ['husk-1b'];
  mock.models = ['grain-4b'];
  await ui.reload();
  equal(await page.inputValue('#model'), 'grain-4b', 'instead of one that broke');
  check((await ui.text('.toast')).includes('husk-1b cannot be opened'), 'the change is not told');
});

test(
  'without a model the page says what is missing',
  { key: true, server: { bad: ['chaff-7b'], models: [] } },
  async ({ page, ui, mock }) => {
    await page.waitForSelector('#banner:not([hidden])');
    check((await ui.text('#banner')).includes('chaff-7b.gguf: the file ends too early'), 'the reason is not told');
    await page.fill('#prompt', 'say hi');
    await page.press('#prompt', 'Enter');
    equal([await page.inputValue('#prompt'), await ui.messages()], ['say hi', 0], 'the question is gone');
    mock.bad = [];
    mock.models = ['grain-4b'];
    await ui.press('Look again');
    await ui.ready();
    await page.waitForSelector('#banner', { state: 'hidden' });
    await page.press('#prompt', 'Enter');
    await page.waitForSelector('article.assistant');
    await ui.idle();
    equal(await ui.answer(), 'hi', 'answer');
  }
);

test('the meter of the context moves while an answer comes', async ({ page, ui }) => {
  const now = () => page.locator('[role=meter]').getAttribute('aria-valuenow').then(Number);
  equal(await now(), 0, 'before the first question');
  await ui.askSlowly();
  const first = await now();
  check(first > 900, `${first} tokens while it comes`);
  await until(async () => (await now()) > first, 'the meter stands still');
  await ui.key('Escape');
  await ui.idle();
  check((await now()) > first, 'the meter falls back when the answer is stopped');
  check(/about \d+ tokens/.test(await ui.text('.stats')), 'tokens of an answer that was stopped');
  check((await ui.text('#meter')).includes('/ 4,096 tokens'), 'the numbers have no unit');
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

test('older turns are left out until the rest fits', async ({ page, ui, mock }) => {
  for (let i = 0; i < 4; i++) await ui.ask(`say ${i}`);
  await ui.ask('overflow 2');
  await ui.press('Leave out the oldest turns');
  await until(() => mock.requests[mock.requests.length - 1].messages.length === 1, 'it stops before the rest fits');
  await page.waitForFunction(() =>
    [...document.querySelectorAll('.markdown')].at(-1).textContent.includes('hand mill')
  );
  await ui.idle();
  await ui.press('Send it again');
  await ui.count('.cut', 0);
  await ui.ask('say all');
  equal(mock.requests[mock.requests.length - 1].messages.length, 11, 'messages after taking them back');
});

test('a question that is too long alone does not go in circles', async ({ page, ui, mock }) => {
  for (let i = 0; i < 3; i++) await ui.ask(`say ${i}`);
  await ui.ask('overflow 1');
  await ui.press('Leave out the oldest turns');
  await page.waitForFunction(() => document.querySelector('.problem:not([hidden])')?.textContent.includes('alone'));
  await ui.idle();
  check(mock.requests.length <= 8, `${mock.requests.length} requests`);
  equal(await page.getByRole('button', { name: 'Leave out' }).count(), 0, 'it is offered again');
  await page.locator('.problem').getByRole('button', { name: 'Edit the question' }).click();
  await ui.key('Control+a');
  await ui.type('say short');
  await ui.key('Enter');
  await page.waitForFunction(() => [...document.querySelectorAll('.markdown')].at(-1).textContent === 'short');
});

test('errors say what happened', async ({ ui }) => {
  for (const [word, text] of [
    ['refuse', 'The server refused. temperature is 99'],
    ['broke', 'The server has a problem. the file ends too early'],
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

test('a key that is not given can be given later', { key: true, server: { key: 'secret' } }, async ({ page, ui }) => {
  await page.waitForSelector('#key[open]');
  await ui.press('Cancel');
  await page.waitForFunction(() => document.querySelector('#banner')?.textContent.includes('only with its key'));
  await page.fill('#prompt', 'say hi');
  await page.press('#prompt', 'Enter');
  await page.waitForSelector('#key[open]');
  await ui.key('Escape');
  equal([await page.inputValue('#prompt'), await ui.messages()], ['say hi', 0], 'the question is gone');
  await ui.press('Enter the key');
  await ui.field('API key').fill('secret');
  await ui.key('Enter');
  await ui.ready();
  await page.waitForSelector('#banner', { state: 'hidden' });
  await page.press('#prompt', 'Enter');
  await page.waitForSelector('article.assistant');
  await ui.idle();
  equal(await ui.answer(), 'hi', 'answer');
});

test('examples go into the box', async ({ page, ui }) => {
  equal(await page.locator('.examples button').count(), 4, 'examples');
  const words = (await page.locator('.welcome').innerText()).toLowerCase();
  equal(
    ['quern', 'mill', 'grain,', 'stone', 'rye'].filter(word => words.includes(word)),
    [],
    'words that mean nothing to a newcomer'
  );
  await page.locator('.examples button').first().click();
  check((await page.inputValue('#prompt')).length > 20, 'the box is empty');
  equal(await ui.messages(), 0, 'it was sent at once');
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
