// Names, roles, contrast, keyboard, phone: what assistive technology and small screens need.

import { check, equal, runAll, test } from './harness.mjs';

const PHONE = { width: 390, height: 844 };

// Everything that is wrong on the page as it is now.
const audit = page =>
  page.evaluate(() => {
    const wrong = [];
    const tell = (node, what) => wrong.push(`${node.tagName.toLowerCase()}#${node.id}.${node.className}: ${what}`);
    const visible = node => node.checkVisibility({ visibilityProperty: true });
    const textOf = id => document.getElementById(id)?.textContent.trim() || '';
    const nameOf = node =>
      (node.getAttribute('aria-labelledby') || '').split(' ').map(textOf).join('') ||
      node.getAttribute('aria-label') ||
      [...(node.labels || [])].map(label => label.textContent.trim()).join('') ||
      (/^(BUTTON|A|SUMMARY)$/.test(node.tagName) ? node.textContent.trim() : '');
    for (const node of document.querySelectorAll(
      'button, a, summary, input, select, textarea, dialog[open], nav, section, [role=group], [role=region], [role=radiogroup], [role=meter]'
    )) {
      if (visible(node) && !nameOf(node)) tell(node, 'has no name');
    }
    for (const node of document.querySelectorAll('img')) if (!node.hasAttribute('alt')) tell(node, 'has no alt');
    for (const node of document.querySelectorAll('svg'))
      if (node.getAttribute('aria-hidden') !== 'true') tell(node, 'is read out');
    for (const node of document.querySelectorAll('[style]'))
      if (!node.matches('#prompt, .fill, #chances')) tell(node, 'has a style attribute');
    for (const node of document.querySelectorAll('[tabindex]'))
      if (Number(node.getAttribute('tabindex')) > 0) tell(node, 'changes the tab order');
    for (const name of ['aria-describedby', 'aria-labelledby', 'aria-controls']) {
      for (const node of document.querySelectorAll(`[${name}]`))
        if (visible(node) && !document.getElementById(node.getAttribute(name))) tell(node, `${name} points nowhere`);
    }
    const ids = [...document.querySelectorAll('[id]')].map(node => node.id);
    ids.forEach((id, i) => ids.indexOf(id) !== i && wrong.push(`id ${id} is there twice`));
    let level = 0;
    for (const node of document.querySelectorAll('main :is(h1, h2, h3, h4, h5, h6)')) {
      if (!visible(node)) continue;
      const now = Number(node.tagName[1]);
      if (now > level + 1) tell(node, `follows a heading of level ${level}`);
      level = now;
    }
    if (document.querySelectorAll('h1').length !== 1) wrong.push('not one h1');
    if (document.querySelectorAll('main').length !== 1 || !document.querySelector('nav')) wrong.push('landmarks');
    if (document.getElementById('live').getAttribute('aria-live') !== 'polite') wrong.push('no live region');
    if (!document.documentElement.lang) wrong.push('no language');
    return wrong;
  });

// Texts whose contrast with their ground is under 4.5 to 1.
const faint = page =>
  page.evaluate(() => {
    const context = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
    const rgba = colour => {
      context.clearRect(0, 0, 1, 1);
      context.fillStyle = colour;
      context.fillRect(0, 0, 1, 1);
      return [...context.getImageData(0, 0, 1, 1).data];
    };
    const over = (top, ground) => top.slice(0, 3).map((v, i) => (v * top[3] + ground[i] * (255 - top[3])) / 255);
    const groundOf = node => {
      if (!node) return [255, 255, 255];
      const own = rgba(getComputedStyle(node).backgroundColor);
      return own[3] === 255 ? own.slice(0, 3) : over(own, groundOf(node.parentElement));
    };
    const light = rgb =>
      rgb
        .map(v => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4))
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode.parentElement;
      if (
        !walker.currentNode.data.trim() ||
        !node.checkVisibility({ opacityProperty: true, visibilityProperty: true }) ||
        node.closest(':disabled, .visually-hidden')
      )
        continue;
      const ground = groundOf(node);
      const [a, b] = [light(over(rgba(getComputedStyle(node).color), ground)), light(ground)].sort((x, y) => y - x);
      const ratio = (a + 0.05) / (b + 0.05);
      if (ratio < 4.5)
        found.push(
          `${ratio.toFixed(2)} ${node.tagName}.${node.className} "${walker.currentNode.data.trim().slice(0, 20)}"`
        );
    }
    return [...new Set(found)];
  });

const overflowing = page =>
  page.evaluate(() => [
    document.documentElement.scrollWidth - innerWidth,
    document.getElementById('thread').scrollWidth - document.getElementById('thread').clientWidth
  ]);

// Shows each state of the page in turn and calls `look(name)`.
async function tour({ page, ui, mock }, look) {
  await look('empty');
  await ui.ask('tour');
  await look('Markdown');
  await ui.ask('think');
  await page.locator('details.fold summary').last().click();
  await ui.ask('tool');
  await look('folds');
  await page.evaluate(() => document.querySelectorAll('article.user .actions button:last-child')[0].click());
  await look('editing');
  await ui.key('Escape');
  await ui.ask('refuse');
  mock.down = true;
  await ui.ask('say hi');
  await page.waitForSelector('#banner:not([hidden])');
  await look('errors');
  mock.down = false;
  await page.locator('#banner button').click();
  await page.click('#open-settings');
  await ui.field('JSON schema').fill('{');
  await look('settings');
  await ui.key('Escape');
  await page.fill('#prompt', 'say hi');
  await page.press('#prompt', 'Enter');
  await page.waitForSelector('#settings[open]');
  await look('a wrong setting');
  await page.locator('#settings').getByLabel('JSON schema').fill('');
  await ui.field('Seed').fill('5');
  await ui.field('Token probabilities').check();
  await ui.key('Escape');
  await ui.ask('say one two three four five');
  await page.locator('article.assistant').last().getByRole('button', { name: 'Answer again' }).click();
  await page.waitForSelector('.same');
  await look('the same answer');
  await page.locator('.tokens span').last().focus();
  await look('probabilities');
  await ui.key('Control+/');
  await look('help');
}

for (const scheme of ['light', 'dark']) {
  for (const size of [undefined, PHONE]) {
    test(`names, roles and contrast, ${scheme}, ${size ? 'phone' : 'desk'}`, { scheme, size }, async now => {
      await tour(now, async name => {
        equal(await audit(now.page), [], name);
        equal(await faint(now.page), [], `${name}: faint text`);
        if (size) equal(await overflowing(now.page), [0, 0], `${name}: scrolls sideways`);
      });
    });
  }
}

test('themes', { real: true }, async ({ page }) => {
  const ground = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const light = await ground();
  await page.click('#open-settings');
  await page.getByRole('radio', { name: 'Light' }).check();
  equal(await ground(), light, 'light');
  await page.getByRole('radio', { name: 'Dark' }).check();
  const dark = await ground();
  check(dark !== light, 'dark looks like light');
  const bars = () => page.locator('meta[name=theme-color]').evaluateAll(all => all.map(meta => meta.content));
  equal(await bars(), ['#1a1815', '#1a1815'], "the colour of a phone's bars");
  await page.reload();
  equal(await ground(), dark, 'after a reload');
  equal(await bars(), ['#1a1815', '#1a1815'], 'bars after a reload');
  await page.click('#open-settings');
  await page.getByRole('radio', { name: 'Automatic' }).check();
  equal(await ground(), light, 'automatic, light');
  await page.emulateMedia({ colorScheme: 'dark' });
  equal(await ground(), dark, 'automatic follows the system');
  equal(await bars(), ['#faf7f1', '#1a1815'], 'bars follow the system');
  equal(await ground(), 'rgb(26, 24, 21)', 'the ground is the colour of the bars');
});

test('everything by keyboard', async ({ page, ui }) => {
  const focused = () =>
    page.evaluate(
      () =>
        document.activeElement.id ||
        document.activeElement.getAttribute('aria-label') ||
        document.activeElement.textContent
    );
  const press = (...keys) => keys.reduce((before, key) => before.then(() => ui.key(key)), Promise.resolve());
  await press('Tab');
  equal(await focused(), 'Skip to the message box', 'first stop');
  await press('Enter');
  equal(await focused(), 'prompt', 'after the skip link');
  await ui.type('say one');
  await press('Shift+Enter');
  await ui.type('two');
  equal(await page.inputValue('#prompt'), 'say one\ntwo', 'two lines');
  await press('Enter');
  await page.waitForSelector('article.assistant');
  await ui.idle();
  equal(await focused(), 'prompt', 'after sending');
  await press('ArrowUp');
  equal(await focused(), 'Edit the question', 'arrow up');
  await press('Escape');
  equal(await focused(), 'Edit the question', 'the button has the focus after Escape');
  await press('Enter', 'Control+a');
  await ui.type('say three');
  await press('Enter');
  await page.waitForSelector('.versions');
  await ui.idle();
  equal(await ui.answer(), 'three', 'answer to the edited question');
  await press('Control+k');
  equal(await focused(), 'search', 'Ctrl+K');
  await press('ArrowDown');
  equal(await focused(), 'say one', 'arrow down from the search');
  await press('Control+Shift+O');
  equal([await focused(), await ui.messages()], ['prompt', 0], 'Ctrl+Shift+O');
  await press('Control+/');
  equal(await page.locator('#help').evaluate(node => node.open), true, 'help is open');
  equal(await focused(), 'Close help', 'focus in the dialog');
  await press('Escape');
  equal(await focused(), 'prompt', 'focus returns from help');
  await page.focus('#open-settings');
  await press('Enter');
  equal(await focused(), 'Close settings', 'focus in the settings');
  await press('Shift+Tab');
  check(await page.evaluate(() => !document.activeElement.closest('main, nav')), 'the focus leaves an open dialog');
  await press('Escape');
  equal(await focused(), 'open-settings', 'focus returns from the settings');
});

test('finished answers are announced', async ({ page, ui }) => {
  await ui.ask('say The stone has turned.');
  await page.waitForFunction(() => document.getElementById('live').textContent.includes('The stone has turned.'));
  equal(await page.locator('article.assistant').getAttribute('aria-busy'), 'false', 'busy');
});

test('waiting for an answer is announced', async ({ page, ui }) => {
  await ui.askSlowly();
  await page.waitForFunction(() => document.getElementById('live').textContent === 'Waiting for the answer');
});

test('a long question scrolls by keyboard', async ({ page, ui }) => {
  await ui.ask(`say ${'a line of a long question\n'.repeat(60)}`);
  const bubble = page.locator('.bubble');
  check(await bubble.evaluate(node => node.clientHeight < 420 && node.scrollHeight > 600), 'it fills the page');
  await bubble.focus();
  await ui.key('End');
  await page.waitForFunction(() => document.querySelector('.bubble').scrollTop > 100);
});

test('focus is visible', { real: true }, async ({ page, ui }) => {
  await page.focus('#prompt');
  for (let i = 0; i < 6; i++) {
    await ui.key('Shift+Tab');
    const seen = await page.evaluate(() => {
      const style = getComputedStyle(document.activeElement);
      return (
        document.activeElement === document.body ||
        (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2)
      );
    });
    check(seen, `stop ${i + 1} shows no focus`);
  }
});

test('what buttons do is written on them', async ({ page }) => {
  equal(await page.locator('#tools button').allInnerTexts(), ['Import', 'Export', 'Help'], 'the foot of the list');
  const names = await page
    .locator('button:visible')
    .evaluateAll(all => all.filter(b => !b.innerText.trim()).map(b => [b.getAttribute('aria-label'), b.title]));
  check(names.length >= 3, 'no buttons with icons alone');
  for (const [name, title] of names) check(title.startsWith(name), `${name} shows no hint`);
});

test('the settings can be closed from their end', { size: PHONE }, async ({ page }) => {
  await page.click('#open-settings');
  await page.evaluate(() => document.getElementById('settings').scrollTo(0, 1e6));
  const top = await page.evaluate(() => {
    const close = document.querySelector('[aria-label="Close settings"]').getBoundingClientRect();
    const seen = document.elementFromPoint(close.x + close.width / 2, close.y + close.height / 2);
    return [document.getElementById('settings').scrollTop > 200, seen?.closest('button')?.getAttribute('aria-label')];
  });
  equal(top, [true, 'Close settings'], 'what is at the place of the button');
});

test('a tall box leaves the way to the end free', { size: PHONE }, async ({ page, ui }) => {
  await ui.ask('long 2000');
  await page.evaluate(() => document.getElementById('thread').scrollTo(0, 0));
  await page.fill('#prompt', 'a line\n'.repeat(30));
  await page.locator('#to-end').click();
  const apart = await page.evaluate(() => {
    const top = id => document.getElementById(id).getBoundingClientRect();
    return top('to-end').bottom <= top('prompt').top;
  });
  check(apart, 'the button lies on the box');
  await page.waitForFunction(() => document.getElementById('to-end').hidden);
});

test('the drawer of a phone', { size: PHONE, touch: true }, async ({ page, ui }) => {
  await askByTouch(ui, 'say hi');
  await page.tap('#open-drawer');
  equal(
    await page.evaluate(() => [document.getElementById('main').inert, document.activeElement.id]),
    [true, 'close-drawer'],
    'what is behind is inert'
  );
  await ui.key('Escape');
  equal(
    await page.evaluate(() => [document.getElementById('main').inert, document.activeElement.id]),
    [false, 'open-drawer'],
    'after Escape'
  );
  await page.tap('#open-drawer');
  await page.tap('#new-chat');
  equal(await page.locator('#sidebar').evaluate(node => node.classList.contains('shown')), false, 'the drawer closes');
});

test('targets of a phone are 44 pixels', { size: PHONE, touch: true }, async ({ page, ui }) => {
  await askByTouch(ui, 'tour');
  const small = () =>
    page.evaluate(() =>
      [...document.querySelectorAll('button, select, summary, input:not([type=checkbox]):not([type=radio])')]
        .filter(node => node.checkVisibility({ visibilityProperty: true }) && !node.closest('label'))
        .map(node => [node.getAttribute('aria-label') || node.id || node.textContent, node.getBoundingClientRect()])
        .filter(([, box]) => box.width < 44 || box.height < 44)
        .map(([name, box]) => `${name} ${box.width}x${box.height}`)
    );
  equal(await small(), [], 'conversation');
  await page.tap('#open-drawer');
  equal(await small(), [], 'drawer');
  await page.tap('#close-drawer');
  await page.tap('#open-settings');
  equal(await small(), [], 'settings');
});

test('on a phone Enter makes a line in an edited question too', { size: PHONE, touch: true }, async ({ page, ui }) => {
  await askByTouch(ui, 'say one');
  await page.getByRole('button', { name: 'Edit the question' }).tap();
  const area = page.locator('.editor textarea');
  await area.press('Enter');
  equal(await area.inputValue(), 'say one\n', 'text');
  await page.getByRole('button', { name: 'Send as a new version' }).tap();
  await page.waitForSelector('.versions');
});

test('nothing scrolls sideways at 320 pixels', { size: { width: 320, height: 640 } }, async ({ page, ui }) => {
  equal(await overflowing(page), [0, 0], 'empty');
  await ui.ask('tour');
  await ui.ask('tool');
  equal(await overflowing(page), [0, 0], 'a conversation');
  await page.click('#open-drawer');
  equal(
    await page.evaluate(
      () => document.getElementById('tools').scrollWidth - document.getElementById('tools').clientWidth
    ),
    0,
    'the foot of the list'
  );
  await page.click('#close-drawer');
  await page.click('#open-settings');
  const settings = page.locator('#settings');
  equal(await settings.evaluate(node => node.scrollWidth - node.clientWidth), 0, 'settings');
});

// On a touch screen Enter makes a line; the button sends.
async function askByTouch(ui, text) {
  await ui.page.fill('#prompt', text);
  await ui.page.press('#prompt', 'Enter');
  equal(await ui.messages(), 0, 'messages before the button');
  await ui.page.tap('#send');
  await ui.page.waitForSelector('article.assistant');
  await ui.idle();
}

await runAll();
