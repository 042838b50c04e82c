/* Show Markdown as DOM nodes: headings, lists, quotes, code, emphasis. Links and tables stay text; nothing is markup.
   `paint(from, to)` makes the nodes of that part of the source. */
"use strict";

const FENCE = /^[ \t]*(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`\n]*$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])[ \t]+/;
const QUOTE = /^ {0,3}>[ \t]?/;
const ROW = /^[ \t]*\|/;
// an escape, code, strong, emphasis; what stands between marks is bounded, so that no text takes long
const INLINE = /\\([!-/:-@[-`{-~])|(?<!`)(`{1,8})([^`]|[^`][\s\S]{0,999}?[^`])\2(?!`)|(\*\*|(?<!\w)__)(?=\S)([\s\S]{0,999}?\S)\4(?!\*)|(\*|(?<!\w)_)(?=[^\s*_])([\s\S]{0,999}?[^\s*_])\6(?!\w)/g;

/* Show the source in `host`, where it may have grown since the last call: blocks that are complete stay. */
export function show(host, source, paint) {
  const blocks = cut(source), old = host.blocks ?? [];
  let same = 0;
  while (same < Math.min(old.length, blocks.length) - 1 && old[same].key === blocks[same].key) same += 1;
  for (const { nodes } of old.slice(same)) nodes.forEach((node) => node.remove());
  host.blocks = blocks.map((block, i) => (i < same ? old[i] : { key: block.key, nodes: made(block, source, paint) }));
  host.append(...host.blocks.slice(same).flatMap(({ nodes }) => nodes));
}

function linesOf(source) {
  const lines = [];
  for (let from = 0; from < source.length; from = lines.at(-1).next) {
    const end = source.indexOf("\n", from) < 0 ? source.length : source.indexOf("\n", from);
    lines.push({ from, end, next: Math.min(source.length, end + 1), text: source.slice(from, end) });
  }
  return lines;
}

function kindOf(text) {
  if (!text.trim()) return "blank";
  if (FENCE.test(text)) return "fence";
  if (HEADING.test(text)) return "heading";
  if (RULE.test(text)) return "rule";
  return ITEM.test(text) ? "list" : QUOTE.test(text) ? "quote" : ROW.test(text) ? "rows" : "paragraph";
}

function goesOn(open, kind, text) {
  if (open === "list" && kind === "paragraph") return /^[ \t]/.test(text);
  return open === kind && kind !== "heading" && kind !== "fence" && kind !== "rule";
}

/* Cut the source into blocks, each with its lines and the blank ones behind it. */
function cut(source) {
  const blocks = [];
  let open = null, fence = null;
  for (const line of linesOf(source)) {
    const kind = fence ? "fence" : kindOf(line.text);
    if (kind === "blank") {
      if (open?.kind !== "list") open = null;
      if (blocks.length) blocks.at(-1).next = line.next;
      continue;
    }
    if (open && (fence || goesOn(open.kind, kind, line.text))) open.lines.push(line);
    else blocks.push((open = { kind, lines: [line], next: 0 }));
    open.next = line.next;
    if (fence && line.text.trim().startsWith(fence) && !line.text.trim().replaceAll(fence[0], "")) fence = open = null;
    else if (!fence && kind === "fence") fence = FENCE.exec(line.text)[1];
  }
  return blocks.map((block) => ({ ...block, key: `${block.kind} ${block.lines[0].from} ${block.next}` }));
}

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

/* Make a box that scrolls sideways, by keyboard too. */
function box(...children) {
  return Object.assign(element("pre", ...children), { tabIndex: 0 });
}

/* Make a block's nodes: its element, and as text the line breaks up to the next one. */
function made({ kind, lines, next }, source, paint) {
  const first = lines[0], end = lines.at(-1).end;
  return [MAKERS[kind](lines, first.from, end, source, paint), document.createTextNode(source.slice(end, next))];
}

const MAKERS = {
  paragraph: (lines, from, end, source, paint) => element("p", ...inline(source, from, end, paint)),
  rule: () => element("hr"),
  rows: (lines, from, end, source, paint) => box(...paint(from, end)),
  heading: (lines, from, end, source, paint) => {
    const [mark, level] = HEADING.exec(lines[0].text);
    return element(`h${Math.min(6, level.length + 1)}`, ...inline(source, from + mark.length, end, paint));
  },
  quote: (lines, from, end, source, paint) => element("blockquote", ...lines.flatMap((line) => {
    return [...inline(source, line.from + QUOTE.exec(line.text)[0].length, line.end, paint), "\n"];
  })),
  fence: (lines, from, end, source, paint) => {
    const [, mark, language] = FENCE.exec(lines[0].text);
    const last = lines.length > 1 && lines.at(-1).text.trim().startsWith(mark) ? lines.at(-1).from : end;
    const code = box(element("code", ...paint(Math.min(last, lines[0].next), last)));
    if (language) code.dataset.language = language;
    return code;
  },
  list: (lines, from, end, source, paint) => {
    const top = { indent: -1, list: element("div") };
    const stack = [top];
    for (const line of lines) {
      const found = ITEM.exec(line.text);
      if (!found) { // the item goes on in another line
        stack.at(-1).list.lastElementChild?.append("\n", ...inline(source, line.from, line.end, paint));
        continue;
      }
      const [mark, space, sign] = found, name = /\d/.test(sign) ? "ol" : "ul";
      while (space.length < stack.at(-1).indent) stack.pop();
      if (stack.length > 1 && stack.at(-1).list.localName !== name && space.length <= stack.at(-1).indent + 1) stack.pop();
      if (stack.length === 1 || space.length > stack.at(-1).indent + 1) {
        const list = element(name);
        (stack.at(-1).list.lastElementChild ?? top.list).append(list);
        if (name === "ol") list.start = parseInt(sign, 10);
        stack.push({ indent: space.length, list });
      }
      stack.at(-1).list.append(element("li", ...inline(source, line.from + mark.length, line.end, paint)));
    }
    return top.list;
  },
};

function inline(source, from, to, paint) {
  const nodes = [];
  let at = from;
  for (const found of source.slice(from, to).matchAll(INLINE)) {
    const [whole, escaped, ticks, code, strong, bold, mark] = found;
    const start = from + found.index;
    nodes.push(...paint(at, start));
    at = start + whole.length;
    if (escaped) nodes.push(...paint(start + 1, at));
    else if (code !== undefined) nodes.push(element("code", ...paint(start + ticks.length, at - ticks.length)));
    else {
      const inner = inline(source, start + (strong ?? mark).length, at - (strong ?? mark).length, paint);
      nodes.push(element(bold === undefined ? "em" : "strong", ...inner));
    }
  }
  return [...nodes, ...paint(at, to)];
}
