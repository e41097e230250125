// A classic script in the head: it runs before the first paint, so that a chosen theme does not flash.
(function () {
  try {
    const theme = localStorage.getItem("roundhouse-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage is blocked: the theme follows the system.
  }
})();
