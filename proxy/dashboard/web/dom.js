// Making and updating elements. All text goes in as text: what a client or a worker wrote is never markup.

export function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

export function svgElement(tag, attributes = {}) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAttributes(made, attributes);
  return made;
}

export function setAttributes(target, attributes) {
  for (const [name, value] of Object.entries(attributes)) target.setAttribute(name, value);
}

/** Only when it is another text, so that a selection lives on. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/** One child for each item, in order; those whose key was there before stay the same elements. */
export function keepChildren(parent, items, keyOf, make, update) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const children = items.map((item) => {
    const key = keyOf(item);
    const child = before.get(key) ?? make(item);
    child.dataset.key = key;
    update(child, item);
    return child;
  });
  if (children.length !== parent.children.length || children.some((child, i) => child !== parent.children[i])) {
    parent.replaceChildren(...children);
  }
}
