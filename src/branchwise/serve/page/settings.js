// The settings: what the person typed, as JSON, and the server's complaints beside the field. The server validates.

const NUMBERS = ["temperature", "max_tokens", "seed"];
const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;

/** What was typed as JSON: digits as they stand, so that no large seed is rounded; anything else as a string. */
function literal(typed) {
  return NUMBER.test(typed) ? typed : JSON.stringify(typed);
}

export class Settings {
  /** @param {HTMLFormElement} form */
  constructor(form, button) {
    this.form = form;
    this.button = button;
    button.addEventListener("click", () => this.show(form.hidden));
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => this.complain(event.target.name, ""));
  }

  show(visible) {
    this.form.hidden = !visible;
    this.button.setAttribute("aria-expanded", String(visible));
  }

  get system() {
    return this.form.elements.system.value.trim();
  }

  /** The fields of a request's body, as text of JSON members. A missing seed is drawn here, so that two runs agree. */
  members() {
    const members = [];
    for (const name of NUMBERS) {
      const typed = this.form.elements[name].value.trim();
      if (typed) members.push(`"${name}":${literal(typed)}`);
      else if (name === "seed") members.push(`"seed":${crypto.getRandomValues(new Uint32Array(1))[0]}`);
    }
    return members;
  }

  /** Shows the server's message beside the field it names; false if there is no such field here. */
  complain(param, message) {
    const name = String(param).startsWith("messages.0") && this.system ? "system" : param;
    const field = this.form.elements.namedItem(name);
    if (!field) return false;
    this.form.querySelector(`#${name}-error`).textContent = message.replace(`${param}: `, "");
    if (message) {
      field.setAttribute("aria-invalid", "true");
      this.show(true);
      field.focus();
    } else {
      field.removeAttribute("aria-invalid");
    }
    return true;
  }
}
