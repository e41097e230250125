/** The theme's button: automatic, light, dark. The choice is kept in this browser. */

const LABELS = { auto: "Auto", light: "Light", dark: "Dark" };
const NEXT = { auto: "light", light: "dark", dark: "auto" };

export function mountTheme(button, text) {
  const root = document.documentElement;
  const show = () => {
    const theme = root.dataset.theme ?? "auto";
    text.textContent = LABELS[theme];
    button.setAttribute("aria-label", `Theme: ${theme === "auto" ? "automatic" : theme}`);
  };
  button.addEventListener("click", () => {
    const theme = NEXT[root.dataset.theme ?? "auto"];
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    remember(theme);
    show();
  });
  show();
}

function remember(theme) {
  try {
    localStorage.setItem("roundhouse-theme", theme);
  } catch {
    // Storage is blocked: the theme lasts until the page is left.
  }
}
