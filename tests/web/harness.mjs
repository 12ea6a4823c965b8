// Runs the tests of the page in Chromium: against the mock, or against the server whose address is
// in WEB_URL or the first argument. Exit 77 when what they need is not there.

import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { startMock } from './mock.mjs';

const ROOT = path.join(path.dirname(fileURLToPath(import.meta.url)), '../..');
const MODULES = process.env.WEB_NPM || path.join(ROOT, 'build/npm');
const CHROMIUM = process.env.WEB_CHROMIUM || '/usr/bin/chromium';
export const realUrl = process.env.WEB_URL || process.argv[2] || '';

function skip(what) {
  console.log(`skip: ${what} not installed`);
  process.exit(77);
}

function loadPlaywright() {
  const require = createRequire(path.join(MODULES, 'here.js'));
  const load = () => require('playwright-core').chromium;
  try {
    return load();
  } catch {
    try {
      execFileSync('npm', ['install', '--no-audit', '--no-fund', '--prefix', MODULES, 'playwright-core'], {
        stdio: 'ignore',
        timeout: 60000
      });
      return load();
    } catch {
      return skip('playwright-core');
    }
  }
}

const tests = [];

// test(name, [{real: true} when a real server can answer it too, size, scheme, key], async ({page, ui, mock}) => ...)
export function test(name, ...rest) {
  const body = rest.pop();
  tests.push({ name, body, options: rest[0] || {} });
}

export function check(condition, what) {
  if (!condition) throw new Error(what);
}

export function equal(got, want, what) {
  const [a, b] = [JSON.stringify(got), JSON.stringify(want)];
  let at = 0;
  while (at < a?.length && a[at] === b?.[at]) at++;
  const near = text => text?.slice(Math.max(0, at - 40), at + 200);
  if (a !== b) throw new Error(`${what}: ${near(a)}, expected ${near(b)}`);
}

// Console errors that the page is meant to cause: the browser reports every failed request.
const EXPECTED = /Failed to load resource/;

async function openPage(browser, url, options) {
  const context = await browser.newContext({
    viewport: options.size || { width: 1280, height: 800 },
    colorScheme: options.scheme || 'light',
    reducedMotion: 'reduce',
    hasTouch: Boolean(options.touch),
    isMobile: Boolean(options.touch),
    acceptDownloads: true
  });
  const page = await context.newPage();
  const complaints = [];
  page.on(
    'console',
    m => ['error', 'warning'].includes(m.type()) && !EXPECTED.test(m.text()) && complaints.push(m.text())
  );
  page.on('pageerror', error => complaints.push(String(error.stack)));
  page.on(
    'request',
    request =>
      !/^(data|blob):/.test(request.url()) &&
      !request.url().startsWith(url) &&
      complaints.push(`outside request ${request.url()}`)
  );
  await page.addInitScript(() => {
    globalThis.violations = [];
    document.addEventListener('securitypolicyviolation', event =>
      globalThis.violations.push(`${event.violatedDirective} ${event.blockedURI}`)
    );
  });
  page.setDefaultTimeout(10000);
  await page.goto(url);
  const ui = new Ui(page);
  if (!options.key) await ui.ready();
  return { context, page, ui, complaints };
}

async function runOne(browser, { body, options }) {
  const mock = realUrl ? null : await startMock(options.server);
  const url = realUrl || mock.url;
  const { context, page, ui, complaints } = await openPage(browser, url, options);
  try {
    await body({ page, ui, mock });
    equal(await page.evaluate(() => globalThis.violations), [], 'violations of the policy');
    equal(complaints, [], 'complaints of the browser');
  } finally {
    await context.close();
    if (mock) await mock.close();
  }
}

export async function runAll() {
  if (!existsSync(CHROMIUM)) skip('chromium');
  const chromium = loadPlaywright();
  const browser = await chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] });
  let failed = 0;
  const wanted = process.env.WEB_TEST || '';
  for (const one of tests.filter(t => t.name.includes(wanted))) {
    if (realUrl && !one.options.real) {
      console.log(`skip  ${one.name} (needs the mock)`);
      continue;
    }
    try {
      await runOne(browser, one);
      console.log(`ok    ${one.name}`);
    } catch (error) {
      failed++;
      console.log(`FAIL  ${one.name}\n      ${String(error.stack).split('\n').slice(0, 4).join('\n      ')}`);
    }
  }
  await browser.close();
  process.exit(failed ? 1 : 0);
}

// ---- what the tests do on the page ----

class Ui {
  constructor(page) {
    this.page = page;
  }

  ready() {
    return this.page.waitForSelector('#model:not([disabled])');
  }

  async reload() {
    await this.page.reload();
    await this.ready();
  }

  // Waits until no answer is on its way.
  idle() {
    return this.page.waitForSelector('#send[aria-label="Send"]');
  }

  async ask(text, wait = true) {
    const before = await this.page.locator('article.assistant').count();
    await this.page.fill('#prompt', text);
    await this.page.press('#prompt', 'Enter');
    await this.count('article.assistant', before + 1);
    if (wait) await this.idle();
  }

  // Asks for a long answer and waits for its first words.
  async askSlowly() {
    await this.ask(`slow ${'grain '.repeat(400)}`, false);
    await this.page.waitForFunction(
      () => document.querySelector('article.assistant .markdown').textContent.length > 20
    );
  }

  // The text of the last element that the selector finds, as it is shown.
  text(selector) {
    return this.page.locator(selector).last().innerText();
  }

  answer() {
    return this.page.locator('article.assistant').last().locator('.markdown').first().innerText();
  }

  messages() {
    return this.page.locator('article.message').count();
  }

  names() {
    return this.page.locator('.chat-item .open').allInnerTexts();
  }

  count(selector, count) {
    return this.page.waitForFunction(([s, n]) => document.querySelectorAll(s).length === n, [selector, count]);
  }

  // Clicks the button of this name.
  press(name) {
    return this.page.getByRole('button', { name }).click();
  }

  field(label) {
    return this.page.getByLabel(label);
  }

  key(name) {
    return this.page.keyboard.press(name);
  }

  type(text) {
    return this.page.keyboard.type(text);
  }

  // The conversations as IndexedDB holds them.
  stored() {
    return this.page.evaluate(async () => {
      const done = request =>
        new Promise((resolve, reject) =>
          Object.assign(request, { onsuccess: () => resolve(request.result), onerror: reject })
        );
      const database = await done(indexedDB.open('quern', 1));
      const all = await done(database.transaction('chats').objectStore('chats').getAll());
      database.close();
      return all;
    });
  }
}

export async function until(condition, what) {
  for (let i = 0; i < 100; i++) {
    if (await condition()) return;
    await new Promise(resolve => setTimeout(resolve, 50));
  }
  throw new Error(what);
}
