// @ts-check
// Tokens as readers see them.

/** @typedef {import("./types.js").Token} Token */

/**
 * A token's text with what cannot be seen made visible: spaces at its ends, line breaks, control characters.
 * @param {string} text
 */
export function visibleText(text) {
  if (text === "") return "∅";
  return Array.from(text, (character) => {
    const code = /** @type {number} */ (character.codePointAt(0));
    if (character === "\n") return "⏎";
    if (character === "\t") return "⇥";
    if (character === "\r") return "␍";
    if (code < 32) return String.fromCodePoint(0x2400 + code);
    if (code === 127) return "␡";
    if ((code >= 0x200b && code <= 0x200f) || (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069)) {
      return `⟨U+${code.toString(16).toUpperCase()}⟩`; // marks that turn the direction of a line
    }
    if (code >= 0xd800 && code <= 0xdfff) return "\ufffd";
    return character;
  }).join("").replace(/^ +| +$/g, (spaces) => "·".repeat(spaces.length));
}

/**
 * The tokens of a kind's queries and keys. In cross-attention a position reads the source in order to write the next
 * token, so its query says which one that is.
 * @param {import("./types.js").Kind} kind
 * @param {{encoder?: Token[], decoder?: Token[], expected?: Token[]}} tokens
 * @returns {{queries: Token[], keys: Token[]}}
 */
export function sides(kind, tokens) {
  let queries = (kind === "encoder" ? tokens.encoder : tokens.decoder) ?? [];
  if (kind === "cross") queries = queries.map((token, i) => ({ ...token, writes: tokens.expected?.[i]?.text, writesSpecial: tokens.expected?.[i]?.special }));
  const keys = (kind === "decoder" ? tokens.decoder : tokens.encoder) ?? [];
  return { queries, keys };
}

/**
 * A query as one line: the token, and what it writes where that is known.
 * @param {Token} token
 */
export function queryText(token) {
  const text = visibleText(token.text);
  return token.writes === undefined ? text : `${text} → ${visibleText(token.writes)}`;
}

/**
 * Labels for the axes of a heat map.
 * @param {Token[]} tokens
 */
export function labelsOf(tokens) {
  return tokens.map((token) => visibleText(token.text));
}

/**
 * The token that a view follows unless the reader chooses another: where a translation writes its last word, the last
 * one of a text that goes on; in an encoder the blank, a name where a model tags names, “it”, or one in the middle.
 * @param {{text: string, special: boolean}[]} tokens
 * @param {"encoder" | "decoder"} stack
 * @param {{text: string, special: boolean}[]} [expected] what an encoder-decoder should predict at each position
 * @param {boolean} [tags] whether the model tags words
 */
export function defaultToken(tokens, stack, expected, tags = false) {
  if (stack === "decoder") {
    const before = expected?.findLastIndex(({ text, special }) => !special && /[\p{L}\p{N}]/u.test(text)) ?? -1;
    return Math.max(0, before >= 0 && before < tokens.length ? before : tokens.length - 1);
  }
  const blank = tokens.findIndex(({ text }) => /^(\[MASK\]|<mask>)$/i.test(text.trim()));
  if (blank >= 0) return blank;
  const name = tags ? tokens.findLastIndex(({ text, special }) => !special && /^\p{Lu}/u.test(text.trim())) : -1;
  if (name >= 0) return name;
  const it = tokens.findIndex(({ text }) => text.trim().toLowerCase() === "it");
  if (it >= 0) return it;
  const plain = tokens.map(({ special }, i) => (special ? -1 : i)).filter((i) => i >= 0);
  return plain[Math.floor(plain.length / 2)] ?? 0;
}
