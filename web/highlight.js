// Source code -> coloured pieces, line by line, so that a block can be coloured as it is written.
// Pure, linear: each token consumes what it matched, and long lines stay plain.
//
//   const lexer = createLexer('python');
//   lexer.line('x = 1  # one') -> [['', 'x = '], ['num', '1'], ['', '  '], ['com', '# one']]
//
// Kinds: com comment, str string, num number, key keyword, typ type, fn called name, pre directive,
// var variable, att attribute or property, tag tag.

const MAX_LINE = 4000;

const words = text => new Set(text.split(' '));

const C_KEYS = words(
  'auto break case catch class const constexpr continue default delete do else enum export extern final fn for func ' +
    'go goto if impl import in inline interface let match mod mut namespace new operator override package private pub ' +
    'public restrict return sizeof static struct switch template this throw trait try typedef typename union unsafe ' +
    'use using virtual volatile while true false nullptr NULL nil null self'
);
const C_TYPES = words(
  'bool char double float int long short signed unsigned void size_t ssize_t ptrdiff_t wchar_t FILE ' +
    'int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t uintptr_t string String ' +
    'i8 i16 i32 i64 u8 u16 u32 u64 usize f32 f64 str Vec Option Result byte error var'
);
const JS_KEYS = words(
  'as async await break case catch class const continue debugger default delete do else enum export extends ' +
    'finally for from function get if implements import in instanceof interface let new of return set static super ' +
    'switch this throw try type typeof var void while with yield true false null undefined NaN Infinity readonly'
);
const JS_TYPES = words('any boolean never number object string symbol unknown Array Map Set Promise Date Error Object');
const PY_KEYS = words(
  'and as assert async await break case class continue def del elif else except finally for from global if import ' +
    'in is lambda match nonlocal not or pass raise return try while with yield True False None self'
);
const PY_TYPES = words('bool bytes dict float frozenset int list object set str tuple type Exception');
const SH_KEYS = words(
  'if then else elif fi for while until do done case esac in function return exit break continue local export set ' +
    'unset shift source alias echo cd test read trap eval exec'
);
// A language: how comments and strings begin and end. `span` pieces may run over several lines.
const C_LIKE = {
  keys: C_KEYS,
  types: C_TYPES,
  line: ['//'],
  span: [['/*', '*/', 'com']],
  quotes: '"\'',
  directive: '#'
};
const LANGUAGES = {
  c: C_LIKE,
  js: {
    keys: JS_KEYS,
    types: JS_TYPES,
    line: ['//'],
    span: [
      ['/*', '*/', 'com'],
      ['`', '`', 'str']
    ],
    quotes: '"\''
  },
  python: {
    keys: PY_KEYS,
    types: PY_TYPES,
    line: ['#'],
    span: [
      ['"""', '"""', 'str'],
      ["'''", "'''", 'str']
    ],
    quotes: '"\'',
    directive: '@'
  },
  shell: {
    keys: SH_KEYS,
    types: new Set(),
    line: ['#'],
    wordComment: true,
    span: [
      ['"', '"', 'str'],
      ["'", "'", 'str']
    ],
    quotes: '',
    variables: true
  },
  json: { keys: words('true false null'), types: new Set(), line: ['//'], span: [], quotes: '"', properties: true }
};

const HASH = { line: ['#'], span: [], quotes: '"\'' };
const SQL_KEYS = words(
  'add all alter and as asc begin between by case check column commit constraint create cross default delete desc ' +
    'distinct drop else end exists foreign from full group having if in index inner insert into is join key left like ' +
    'limit not null offset on or order outer primary references returning right rollback select set table then union ' +
    'unique update using values view when where with true false'
);
const SQL_TYPES = words(
  'bigint blob boolean char date decimal double float int integer numeric real text timestamp varchar'
);
Object.assign(LANGUAGES, {
  sql: { keys: SQL_KEYS, types: SQL_TYPES, anyCase: true, line: ['--'], span: [['/*', '*/', 'com']], quotes: '"\'' },
  lua: {
    keys: words(
      'and break do else elseif end false for function goto if in local nil not or repeat return then true until while'
    ),
    types: new Set(),
    line: ['--'],
    span: [],
    quotes: '"\''
  },
  ruby: {
    ...HASH,
    keys: words(
      'alias and begin break case class def do else elsif end ensure false for if in module my next nil not or our ' +
        'redo rescue retry return self sub super then true undef unless until use when while yield function'
    ),
    types: new Set()
  },
  css: { keys: new Set(), types: new Set(), line: [], span: [['/*', '*/', 'com']], quotes: '"\'', directive: '@' }
});

const ALIASES = {
  c: 'c h cpp c++ cc cxx hpp cuda cu java go golang rust rs cs csharp kotlin swift zig scala php objc',
  js: 'js javascript jsx ts typescript tsx mjs cjs node',
  python: 'python py python3 gyp',
  shell: 'shell sh bash zsh console terminal yaml yml toml ini make makefile dockerfile cmake',
  json: 'json jsonc json5 jsonl',
  html: 'html xml svg htm xhtml vue',
  sql: 'sql sqlite postgres postgresql mysql plsql',
  lua: 'lua',
  ruby: 'ruby rb perl pl r julia jl elixir ex',
  css: 'css scss less',
  diff: 'diff patch'
};
const BY_NAME = new Map();
for (const [language, names] of Object.entries(ALIASES)) for (const n of names.split(' ')) BY_NAME.set(n, language);

const languageOf = name => BY_NAME.get(name.toLowerCase()) || '';

export function createLexer(name) {
  const language = languageOf(name);
  if (language === 'html') return { line: htmlLine };
  if (language === 'diff') return { line: text => [[DIFF[text[0]] || '', text]] };
  return language ? new CodeLexer(LANGUAGES[language]) : { line: text => [['', text]] };
}

const DIFF = { '+': 'str', '-': 'key', '@': 'pre' };
const NAME = /[\p{L}_$][\p{L}\p{N}_$]*/uy;
const NUMBER = /(?:0[xXbBoO][0-9a-fA-F_]+|\d[\d_]*(?:\.[\d_]+)?(?:[eE][+-]?\d+)?)[a-zA-Z]{0,4}/y;
const VARIABLE = /\$(?:[A-Za-z_]\w*|\{[^}\n]{0,200}\}|[#?@*!$0-9-])/y;
const GAP = /[^\p{L}\p{N}_$"'`/#@-]+/uy;
const FLAG = /-{1,2}[A-Za-z][\w-]*/y;

class CodeLexer {
  constructor(language) {
    this.language = language;
    this.open = null; // the span that the last line left open
  }

  line(text) {
    if (text.length > MAX_LINE) return [['', text]];
    this.out = [];
    let at = 0;
    if (this.open) at = this.rest(text, 0);
    const first = at === 0 ? text.search(/\S/) : -1;
    while (at < text.length) {
      const before = at;
      at = this.token(text, at, first);
      if (at === before) this.put('', text[at++]);
    }
    return this.out;
  }

  put(kind, text) {
    const last = this.out[this.out.length - 1];
    if (last && last[0] === kind) last[1] += text;
    else if (text) this.out.push([kind, text]);
  }

  // Up to the end of the open span, or of the line.
  rest(text, at) {
    const [, close, kind] = this.open;
    const end = endOf(text, at, close);
    this.put(kind, text.slice(at, end < 0 ? text.length : end));
    if (end >= 0) this.open = null;
    return end < 0 ? text.length : end;
  }

  token(text, at, first) {
    const { language } = this;
    for (const mark of language.line) {
      if (!text.startsWith(mark, at) || (language.wordComment && at && !/[\s;]/.test(text[at - 1]))) continue;
      this.put('com', text.slice(at));
      return text.length;
    }
    for (const span of language.span) {
      if (!text.startsWith(span[0], at)) continue;
      this.open = span;
      this.put(span[2], span[0]);
      return this.rest(text, at + span[0].length);
    }
    if (language.quotes.includes(text[at])) return this.string(text, at);
    if (language.directive === text[at] && at === first) return this.match('pre', /[#@]\s{0,8}[\w.]*/y, text, at);
    if (language.variables && text[at] === '$') return this.match('var', VARIABLE, text, at);
    if (language.variables && text[at] === '-' && (!at || text[at - 1] === ' '))
      return this.match('att', FLAG, text, at);
    return this.word(text, at);
  }

  string(text, at) {
    let end = endOf(text, at + 1, text[at]);
    if (end < 0) end = text.length;
    const property = this.language.properties && /\s{0,100}:/y;
    if (property) property.lastIndex = end;
    this.put(property && property.test(text) ? 'att' : 'str', text.slice(at, end));
    return end;
  }

  match(kind, pattern, text, at) {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) this.put(kind, found[0]);
    return found ? pattern.lastIndex : at;
  }

  word(text, at) {
    const { anyCase, keys, types } = this.language;
    NAME.lastIndex = at;
    const found = NAME.exec(text);
    if (!found) {
      const end = this.match('num', NUMBER, text, at);
      return end > at ? end : this.match('', GAP, text, at);
    }
    const [name] = found;
    const end = at + name.length;
    const known = anyCase ? name.toLowerCase() : name;
    const kind = keys.has(known) ? 'key' : types.has(known) ? 'typ' : text[end] === '(' ? 'fn' : '';
    this.put(kind, name);
    return end;
  }
}

// The place after `close`, which a backslash can hide; -1 when it is not on this line.
function endOf(text, at, close) {
  for (let i = at; i < text.length; i++) {
    if (text[i] === '\\' && close !== '*/' && close !== '-->') i++;
    else if (text.startsWith(close, i)) return i + close.length;
  }
  return -1;
}

const HTML =
  /(<!--.*?(?:-->|$))|(<[/!?]?[A-Za-z][\w:-]*|[/?]?>)|([\w:@.-]+(?==))|(?<==)("[^"]*"|'[^']*')|[^<=/>\s]+|[^]/y;
const HTML_KINDS = ['', 'com', 'tag', 'att', 'str'];

// One line at a time is enough to read by: a comment of several lines is coloured in its first.
function htmlLine(text) {
  if (text.length > MAX_LINE) return [['', text]];
  const out = [];
  for (HTML.lastIndex = 0; HTML.lastIndex < text.length;) {
    const match = HTML.exec(text);
    out.push([HTML_KINDS.find((kind, i) => i && match[i]) || '', match[0]]);
  }
  return out;
}
