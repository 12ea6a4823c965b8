// Runs before the first paint, so that the page does not flash in the wrong colours.
(() => {
  let theme = 'auto';
  try {
    theme = JSON.parse(localStorage.getItem('quern.prefs') || '{}').theme;
  } catch {
    // no storage: the system's choice
  }
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
})();
