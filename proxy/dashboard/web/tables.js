// What is listed: who transferred to whom in the last minute, and the newest errors that clients got.

import { element, keepChildren, setText } from "./dom.js";
import { ago, count } from "./format.js";

const byId = (id) => document.getElementById(id);

export function showHandoffs(state) {
  const keyOf = (each) => `${each.prefill} ${each.decode} ${each.transport}`;
  const make = () => {
    const row = element("tr");
    row.append(...["", "", "", "number", "number"].map((name) => element("td", name)));
    return row;
  };
  keepChildren(byId("handoffs"), state.handoffs.slice(0, 12), keyOf, make, (row, each) => {
    const texts = [each.prefill, each.decode, each.transport, count(each.num_now), count(each.num_minute)];
    texts.forEach((text, i) => setText(row.children[i], text));
  });
  byId("handoffs-table").hidden = !state.handoffs.length;
  byId("no-handoffs").hidden = Boolean(state.handoffs.length);
}

export function showErrors(state) {
  const keyOf = (each) => [each.code, each.reason, each.prefill_worker, each.decode_worker].join(" ");
  const make = () => {
    const item = element("li");
    const head = element("p", "head");
    head.append(element("b"), element("span", "muted"), element("span", "when muted"));
    item.append(head, element("p"), element("p", "where muted"));
    return item;
  };
  keepChildren(byId("errors"), state.errors, keyOf, make, (item, each) => {
    const [head, message, where] = item.children;
    setText(head.children[0], `${each.http_status} ${each.reason ?? each.code}`);
    setText(head.children[1], each.count > 1 ? `${count(each.count)} times` : "");
    setText(head.children[2], ago(state.at - each.at));
    setText(message, each.message);
    const workers = [each.prefill_worker, each.decode_worker].filter(Boolean).join(" → ");
    setText(where, [each.request_id, workers].filter(Boolean).join(" · "));
  });
  byId("no-errors").hidden = Boolean(state.errors.length);
}
