// @ts-check
// Words of the interface, in English and Chinese.

import en from "./i18n/en.js";
import zh from "./i18n/zh.js";

/** @typedef {Record<string, string>} Words */

/** The page's own words. */
export const PAGE = { en, zh };

/**
 * Fill in "{name}" in a sentence.
 * @param {string} sentence
 * @param {Record<string, string | number>} values
 */
export function fillIn(sentence, values) {
  return sentence.replace(/\{(\w+)\}/g, (whole, name) => (Object.hasOwn(values, name) ? String(values[name]) : whole));
}

/**
 * A function that says things in one language; the first collection that knows a key is used.
 * @param {"en" | "zh"} lang
 * @param {...({en: Words, zh: Words})} collections
 * @returns {(key: string, values?: Record<string, string | number>) => string}
 */
export function translator(lang, ...collections) {
  return (key, values = {}) => {
    for (const words of collections) {
      if (Object.hasOwn(words[lang], key)) return fillIn(words[lang][key], values);
    }
    for (const words of collections) {
      if (Object.hasOwn(words.en, key)) return fillIn(words.en[key], values);
    }
    return key;
  };
}

/**
 * The language that a browser asks for.
 * @param {readonly string[]} languages
 * @returns {"en" | "zh"}
 */
export function preferred(languages) {
  for (const language of languages) {
    if (language.toLowerCase().startsWith("zh")) return "zh";
    if (language.toLowerCase().startsWith("en")) return "en";
  }
  return "en";
}
