/**
 * Light or dark theme: that of the address, else the one chosen before, else the system's.
 * @module
 */
const KEY = "lanescope.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

export class Theme {
  /** @param {string} asked by the address, or empty @param {(name: string) => void} changed */
  constructor(asked, changed) {
    this.changed = changed;
    this.chosen = asked || stored();
    this.apply();
    system.addEventListener("change", () => {
      if (!this.chosen) this.changed(this.name);
    });
  }

  /** The theme in effect. @returns {"light"|"dark"} */
  get name() {
    return this.chosen || (system.matches ? "dark" : "light");
  }

  toggle() {
    this.chosen = this.name === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(KEY, this.chosen);
    } catch {
      // Storage may be forbidden; the address still carries the choice.
    }
    this.apply();
    this.changed(this.name);
  }

  apply() {
    if (this.chosen) document.documentElement.dataset.theme = this.chosen;
    else delete document.documentElement.dataset.theme;
  }
}

function stored() {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "";
  } catch {
    return "";
  }
}
