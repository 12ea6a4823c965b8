// Formulas in TeX -> a tree of MathML elements [tag, text or kids, attributes]. Pure, one pass, bounded depth.
//
// A part of TeX that models write. Whatever is not known makes the whole formula null, and it is then
// shown as it was written, which is better than a formula that looks right and is not.

const MAX_LENGTH = 4000;
const MAX_DEPTH = 24;

const table = text => Object.fromEntries(text.split(' ').map(pair => [pair.slice(0, -1), pair.slice(-1)]));

const LETTERS = table(
  'alphaα betaβ gammaγ deltaδ epsilonϵ varepsilonε zetaζ etaη thetaθ varthetaϑ iotaι kappaκ lambdaλ muμ nuν xiξ piπ ' +
    'rhoρ sigmaσ tauτ upsilonυ phiϕ varphiφ chiχ psiψ omegaω GammaΓ DeltaΔ ThetaΘ LambdaΛ XiΞ PiΠ SigmaΣ UpsilonΥ ' +
    'PhiΦ PsiΨ OmegaΩ infty∞ partial∂ nabla∇ hbarℏ ellℓ emptyset∅ varnothing∅ forall∀ exists∃ Reℜ Imℑ alephℵ'
);
const OPERATORS = table(
  'times× cdot⋅ div÷ pm± mp∓ ast∗ star⋆ circ∘ bullet∙ leq≤ le≤ geq≥ ge≥ neq≠ ne≠ approx≈ equiv≡ sim∼ simeq≃ cong≅ ' +
    'propto∝ ll≪ gg≫ in∈ notin∉ ni∋ subset⊂ subseteq⊆ supset⊃ supseteq⊇ cup∪ cap∩ setminus∖ land∧ lor∨ wedge∧ vee∨ ' +
    'neg¬ lnot¬ oplus⊕ otimes⊗ to→ rightarrow→ leftarrow← leftrightarrow↔ Rightarrow⇒ implies⇒ Leftarrow⇐ ' +
    'Leftrightarrow⇔ iff⇔ mapsto↦ uparrow↑ downarrow↓ ldots… dots… cdots⋯ vdots⋮ ddots⋱ mid∣ parallel∥ perp⊥ angle∠ ' +
    'langle⟨ rangle⟩ lfloor⌊ rfloor⌋ lceil⌈ rceil⌉ int∫ iint∬ oint∮ prime′ degree° therefore∴ because∵ colon:'
);
// Their limits stand above and below in display style.
const TALL = table('sum∑ prod∏ coprod∐ bigcup⋃ bigcap⋂');
const NAMES = new Set(
  'sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp det dim ker deg gcd arg'.split(' ')
);
const LIMITS = new Set('lim max min sup inf argmax argmin'.split(' '));
const ACCENTS = table('vec→ hat^ widehat^ bar¯ overline¯ dot˙ ddot¨ tilde~ widetilde~ overrightarrow→');
const SPACES = { ',': 0.17, ':': 0.22, ';': 0.28, ' ': 0.25, '!': 0, quad: 1, qquad: 2 };
const UPRIGHT = new Set('text mathrm textrm operatorname textit textbf mbox'.split(' '));
const BIG = /^[bB]ig+[lrm]?$/;
const DOUBLE = { C: 'ℂ', H: 'ℍ', N: 'ℕ', P: 'ℙ', Q: 'ℚ', R: 'ℝ', Z: 'ℤ' };
const FENCES = { matrix: '', pmatrix: '()', bmatrix: '[]', Bmatrix: '{}', vmatrix: '||', Vmatrix: '‖‖', cases: '{' };
const ALIGNED = new Set(['aligned', 'align', 'align*', 'split', 'gathered', 'gather', 'gather*', 'array']);

const TOKEN = /\s*(\\[A-Za-z]+|\\[^]|\d+(?:[.,]\d+)*|[^\s])/uy;
const DELIMITED = [
  ['$$', '$$'],
  ['\\[', '\\]'],
  ['\\(', '\\)'],
  ['$', '$']
];

// The formula without its delimiters.
export function formulaOf(source) {
  for (const [open, close] of DELIMITED)
    if (source.startsWith(open) && source.endsWith(close) && source.length >= open.length + close.length)
      return source.slice(open.length, -close.length).trim();
  return source;
}

export function parseTex(tex) {
  if (tex.length > MAX_LENGTH) return null;
  const parser = new Parser(tex);
  try {
    const row = parser.row([]);
    return parser.peek() === '' ? ['mrow', row] : null;
  } catch (error) {
    if (error instanceof Unknown) return null;
    throw error;
  }
}

class Unknown extends Error {}

function fail() {
  throw new Unknown();
}

class Parser {
  constructor(tex) {
    this.tex = tex;
    this.at = 0;
    this.depth = 0;
    this.read();
  }

  // `token` is the next one, which ends at `at`; '' at the end.
  read() {
    TOKEN.lastIndex = this.at;
    const found = TOKEN.exec(this.tex);
    this.token = found ? found[1] : '';
    this.at = found ? TOKEN.lastIndex : this.tex.length;
  }

  peek() {
    return this.token;
  }

  take() {
    const { token } = this;
    this.read();
    return token;
  }

  expect(token) {
    if (this.take() !== token) fail();
  }

  // Atoms up to one of `ends`, which is left.
  row(ends) {
    if (++this.depth > MAX_DEPTH) fail();
    const atoms = [];
    while (this.token !== '' && !ends.includes(this.token)) atoms.push(this.scripted());
    if (ends.length && this.token === '') fail();
    this.depth--;
    return atoms;
  }

  scripted() {
    const base = this.atom();
    if (this.token === '\\limits') this.take();
    let [below, above] = [null, null];
    const primes = [];
    while (this.token === "'") primes.push(mo(this.take() && '′'));
    while (this.token === '_' || this.token === '^') {
      if (this.take() === '_') below = below ? fail() : this.argument();
      else above = above ? fail() : this.argument();
    }
    if (primes.length) above = ['mrow', above ? [...primes, above] : primes];
    if (!below && !above) return base;
    const limits = base[2]?.movablelimits === 'true';
    const tags = limits ? ['munder', 'mover', 'munderover'] : ['msub', 'msup', 'msubsup'];
    if (below && above) return [tags[2], [base, below, above]];
    return below ? [tags[0], [base, below]] : [tags[1], [base, above]];
  }

  // What a command or a script takes: one atom, or what is in braces.
  argument() {
    if (/^\d./.test(this.token)) {
      const digit = this.token[0];
      this.token = this.token.slice(1);
      return ['mn', digit]; // of a number without braces only the first digit belongs to the command
    }
    if (++this.depth > MAX_DEPTH) fail();
    const atom = this.atom();
    this.depth--;
    return atom;
  }

  atom() {
    const token = this.take();
    if (token === '{') {
      const row = this.row(['}']);
      this.expect('}');
      return ['mrow', row];
    }
    if (/^\\/.test(token)) return this.command(token.slice(1));
    if (/^\d/.test(token)) return ['mn', token];
    if (/^\p{L}$/u.test(token)) return ['mi', token];
    if (token === '' || /^[}_^&#%$~\\]$/.test(token)) fail();
    if (token === '|') return ['mo', token, { stretchy: 'false', lspace: '0', rspace: '0' }];
    return /^[()[\]/]$/.test(token) ? ['mo', token, { stretchy: 'false' }] : mo(PLAIN[token] || token);
  }

  command(name) {
    if (Object.hasOwn(LETTERS, name)) return ['mi', LETTERS[name]];
    if (Object.hasOwn(OPERATORS, name)) return mo(OPERATORS[name]);
    if (Object.hasOwn(TALL, name)) return ['mo', TALL[name], { movablelimits: 'true' }];
    if (Object.hasOwn(SPACES, name)) return ['mspace', [], { width: `${SPACES[name]}em` }];
    if (Object.hasOwn(ACCENTS, name)) return ['mover', [this.argument(), mo(ACCENTS[name])], { accent: 'true' }];
    if (NAMES.has(name))
      return ['mo', name, { lspace: '0.17em', rspace: /^[({]|\\left/.test(this.token) ? '0' : '0.17em' }];
    if (LIMITS.has(name)) return ['mo', name, { movablelimits: 'true', lspace: '0', rspace: '0.17em' }];
    if (UPRIGHT.has(name)) return ['mtext', this.raw()];
    if (BIG.test(name)) return mo(this.delimiter());
    if (/^[{}|%$#&_]$/.test(name)) return mo(name === '|' ? '‖' : name);
    return Object.hasOwn(COMMANDS, name) ? COMMANDS[name](this) : fail();
  }

  // The text in braces, as it is.
  raw() {
    const end = this.tex.indexOf('}', this.at);
    if (this.token !== '{' || end < 0) fail();
    const text = this.tex.slice(this.at, end);
    if (/[{\\$]/.test(text)) fail();
    this.at = end + 1;
    this.read();
    return text.replace(/^\s|\s$/g, '\u00a0');
  }

  delimiter() {
    const token = this.take();
    if (token === '.') return '';
    if (/^[()[\]|/<>]$/.test(token)) return { '<': '⟨', '>': '⟩' }[token] || token;
    const name = token.slice(1);
    if (/^\\[{}|]$/.test(token)) return name === '|' ? '‖' : name;
    return /^\\[lr](?:angle|floor|ceil)$/.test(token) ? OPERATORS[name] : fail();
  }

  environment(name) {
    if (name === 'array') this.raw(); // how the columns are aligned
    const rows = [[]];
    for (;;) {
      rows[rows.length - 1].push(['mtd', this.row(['&', '\\\\', '\\end'])]);
      const end = this.take();
      if (end === '\\\\') rows.push([]);
      if (end === '\\end') break;
    }
    if (this.raw() !== name) fail();
    if (rows.length > 1 && isEmpty(rows[rows.length - 1])) rows.pop();
    const body = ['mtable', rows.map(cells => ['mtr', cells])];
    if (ALIGNED.has(name) || name === 'cases') body.push({ class: name === 'cases' ? 'cases' : 'aligned' });
    const [open, close] = FENCES[name] || '';
    return ['mrow', [open && mo(open), body, close && mo(close)].filter(Boolean)];
  }
}

const PLAIN = { '-': '−', '*': '∗' };
const mo = text => ['mo', text];
const isEmpty = cells => cells.length === 1 && !cells[0][1].length;

const frac = p => ['mfrac', [p.argument(), p.argument()]];
const bold = char => {
  const code = char.codePointAt(0);
  if (/[A-Z]/.test(char)) return String.fromCodePoint(0x1d400 + code - 65);
  return /[a-z]/.test(char) ? String.fromCodePoint(0x1d41a + code - 97) : char;
};

const SCRIPT = { B: 'ℬ', E: 'ℰ', F: 'ℱ', H: 'ℋ', I: 'ℐ', L: 'ℒ', M: 'ℳ', R: 'ℛ' };
const script = char =>
  /^[A-Z]$/.test(char) ? SCRIPT[char] || String.fromCodePoint(0x1d49c + char.charCodeAt(0) - 65) : fail();

const COMMANDS = {
  frac,
  dfrac: frac,
  tfrac: frac,
  binom: p => ['mrow', [mo('('), ['mfrac', [p.argument(), p.argument()], { linethickness: '0' }], mo(')')]],
  sqrt(p) {
    if (p.peek() !== '[') return ['msqrt', [p.argument()]];
    p.take();
    const index = ['mrow', p.row([']'])];
    p.expect(']');
    return ['mroot', [p.argument(), index]];
  },
  left(p) {
    const open = p.delimiter();
    const inside = p.row(['\\right']);
    p.expect('\\right');
    return ['mrow', [mo(open), ...inside, mo(p.delimiter())]];
  },
  underbrace: p => ['munder', [p.argument(), mo('⏟')], { movablelimits: 'true' }],
  mathbf: p => ['mi', [...p.raw()].map(bold).join('')],
  mathcal: p => ['mi', script(p.raw())],
  mathbb: p => ['mi', DOUBLE[p.raw()] || fail()],
  begin(p) {
    const name = p.raw();
    return Object.hasOwn(FENCES, name) || ALIGNED.has(name) ? p.environment(name) : fail();
  },
  displaystyle: () => ['mspace', [], { width: '0em' }],
  boxed: p => ['mrow', [p.argument()], { class: 'boxed' }]
};
