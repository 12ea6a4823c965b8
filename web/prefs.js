// Settings that hold for every conversation, kept in localStorage.

const KEY = 'quern.prefs';
const THEMES = ['auto', 'light', 'dark'];
const GROUNDS = { light: '#faf7f1', dark: '#1a1815' }; // --ground of base.css
const THINKING = ['auto', 'on', 'off'];

export function loadPrefs() {
  let stored = {};
  try {
    stored = JSON.parse(localStorage.getItem(KEY)) || {};
  } catch {
    // none, or not ours
  }
  return {
    theme: THEMES.includes(stored.theme) ? stored.theme : 'auto',
    model: typeof stored.model === 'string' ? stored.model : '',
    thinking: THINKING.includes(stored.thinking) ? stored.thinking : 'auto',
    probs: stored.probs === true,
    sampling: typeof stored.sampling === 'object' && stored.sampling ? stored.sampling : {}
  };
}

export function savePrefs(prefs) {
  try {
    localStorage.setItem(KEY, JSON.stringify(prefs));
  } catch {
    // they hold until the page closes
  }
}

export function applyTheme(theme) {
  if (theme === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  // The bars of a phone's browser take the colour of the page.
  const [light, dark] = document.querySelectorAll('meta[name=theme-color]');
  light.content = GROUNDS[theme === 'dark' ? 'dark' : 'light'];
  dark.content = GROUNDS[theme === 'light' ? 'light' : 'dark'];
}
