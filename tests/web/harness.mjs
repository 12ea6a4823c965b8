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

// test(name, [{mock: true} when it needs the mock's answers, size, scheme, key], async ({page, mock}) => ...)
export function test(name, ...rest) {
  const body = rest.pop();
  tests.push({ name, body, options: rest[0] || {} });
}

export function check(condition, what) {
  if (!condition) throw new Error(what);
}

export function equal(got, want, what) {
  const [a, b] = [JSON.stringify(got), JSON.stringify(want)];
  if (a !== b) throw new Error(`${what}: ${a}, expected ${b}`);
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
  if (!options.key) await ready(page);
  return { context, page, complaints };
}

export const ready = page => page.waitForSelector('#model:not([disabled])');

async function runOne(browser, { body, options }) {
  const mock = realUrl ? null : await startMock(options.server);
  const url = realUrl || mock.url;
  const { context, page, complaints } = await openPage(browser, url, options);
  try {
    await body({ page, mock, context, url });
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
    if (realUrl && one.options.mock) {
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

// Waits until no answer is on its way.
export const idle = page => page.waitForSelector('#send[aria-label="Send"]');

export async function ask(page, text, wait = true) {
  const before = await page.locator('article.assistant').count();
  await page.fill('#prompt', text);
  await page.press('#prompt', 'Enter');
  await page.waitForFunction(n => document.querySelectorAll('article.assistant').length > n, before);
  if (wait) await idle(page);
}

export const lastAnswer = page => page.locator('article.assistant').last().locator('.markdown').first().innerText();
export const messages = page => page.locator('article.message').count();
export const chatNames = page => page.locator('.chat-item .open').allInnerTexts();

// The conversations as IndexedDB holds them.
export const stored = page =>
  page.evaluate(
    () =>
      new Promise((resolve, reject) => {
        const open = indexedDB.open('quern', 1);
        open.onerror = () => reject(open.error);
        open.onsuccess = () => {
          const all = open.result.transaction('chats').objectStore('chats').getAll();
          all.onsuccess = () => {
            open.result.close();
            resolve(all.result);
          };
        };
      })
  );
