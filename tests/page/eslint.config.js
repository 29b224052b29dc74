// @ts-check
// What the type checker does not see: likely mistakes, and ways for text to become code or markup.

import globals from "globals";

const MARKUP = "Text enters the page as text nodes: use h() and s() of dom.js.";

export default [
  { ignores: ["**/node_modules/"] },
  {
    files: ["**/*.js"],
    languageOptions: { ecmaVersion: 2024, sourceType: "module", globals: { ...globals.browser, ...globals.node } },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "constructor-super": "error",
      "eqeqeq": "error",
      "no-cond-assign": "error",
      "no-const-assign": "error",
      "no-constant-condition": "error",
      "no-control-regex": "error",
      "no-dupe-keys": "error",
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-script-url": "error",
      "no-self-compare": "error",
      "no-shadow": "off",
      "no-undef": "error",
      "no-unreachable": "error",
      "no-unused-vars": "error",
      "no-var": "error",
      "prefer-const": "error",
      "no-restricted-properties": [
        "error",
        { property: "innerHTML", message: MARKUP },
        { property: "outerHTML", message: MARKUP },
        { property: "insertAdjacentHTML", message: MARKUP },
        { object: "document", property: "write", message: MARKUP },
      ],
      "no-restricted-syntax": [
        "error",
        { selector: "ImportExpression", message: "The exporter joins static imports only." },
        { selector: "ExportAllDeclaration", message: "The exporter joins named exports only." },
        { selector: "Program > ExpressionStatement > AwaitExpression", message: "No top-level await: the exported script is no module." },
        { selector: "CallExpression[callee.property.name='setAttribute'][arguments.0.value='style']", message: "The content policy refuses style attributes: use element.style." },
      ],
    },
  },
];
