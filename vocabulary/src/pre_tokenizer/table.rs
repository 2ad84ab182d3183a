//! The table of pre-tokenizers, with their patterns.

use super::{Bos, PreTokenizer, Spelling};

/// The pattern that `ByteLevel` splits by unless this is disabled.
pub const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Splits every digit into a piece.
pub const DIGITS: &str = r"\p{N}";

/// English contractions, as llama.cpp spells `(?i:…)`: only ASCII letters are case-insensitive.
macro_rules! contractions {
    () => {
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    };
}

/// Common ending of most patterns since GPT-4's.
macro_rules! spaces {
    () => {
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}

const LLAMA3: &str =
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*", spaces!());
const LLAMA3_PUBLISHED: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*", spaces!());
const QWEN2_PUBLISHED: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words that are split at case changes. In llama.cpp, only ASCII letters count as upper or lower
/// case.
macro_rules! cased_words {
    ($letters:literal, $end:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[",
            $letters,
            r"&&[^a-z]]*[",
            $letters,
            r"&&[^A-Z]]+",
            $end,
            r"|[^\r\n\p{L}\p{N}]?[",
            $letters,
            r"&&[^a-z]]+[",
            $letters,
            r"&&[^A-Z]]*",
            $end
        )
    };
}
/// The same with the case of all letters, as in `tokenizer.json` files.
macro_rules! all_cased_words {
    ($end:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $end,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $end
        )
    };
}
/// The same as llama.cpp reads it, which does not distinguish case here.
macro_rules! words {
    ($end:expr) => {
        concat!(r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", $end)
    };
}
const GPT4O: &str = concat!(
    cased_words!(r"\p{L}", concat!(contractions!(), "?")),
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*",
    spaces!()
);
const GPT4O_PUBLISHED: &str = concat!(
    all_cased_words!(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"),
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const DEEPSEEK3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"##,
    spaces!()
);
const CJK: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";
/// Groups of three digits, counted from the right.
const THOUSANDS: &str = r"\d{1,3}(?=(?:\d{3})*\b)";
/// Korean, Chinese and Japanese text and its punctuation.
const YOUTU_SCRIPTS: &str = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u{3040}-ゟ゠-ヿ]+";
/// Letters that have a case, with an optional space before them. Written as code points, because
/// some letters look alike in editors.
const CASED_LETTERS: &str = concat!(
    "\\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\u{295}-\u{2af}",
    "\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\u{3a3}",
    "-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}",
    "\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}",
    "\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}",
    "-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}",
    "\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}",
    "\u{2115}\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}",
    "-\u{213f}\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}",
    "\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}",
    "\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}",
    "\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}",
    "-\u{1e943}]+",
);
/// Words of any language up to punctuation.
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

const PLAIN: PreTokenizer = PreTokenizer {
    name: "",
    aliases: &[],
    patterns: &[],
    published: &[],
    spelling: Spelling::Bytes,
    ignore_merges: false,
    bos: Bos::Unusual,
    cleans_spaces: false,
};

/// Creates a pre-tokenizer whose decoder removes the spaces before some punctuation.
const fn cleaning(
    name: &'static str,
    aliases: &'static [&'static str],
    patterns: &'static [&'static str],
) -> PreTokenizer {
    PreTokenizer { name, aliases, patterns, cleans_spaces: true, ..PLAIN }
}

/// Creates a pre-tokenizer whose decoder keeps all spaces.
const fn keeping(
    name: &'static str,
    aliases: &'static [&'static str],
    patterns: &'static [&'static str],
) -> PreTokenizer {
    PreTokenizer { name, aliases, patterns, ..PLAIN }
}

/// Pre-tokenizer that readers assume for a file that names none.
pub(super) const DEFAULT: PreTokenizer =
    cleaning("default", &[], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]);

/// All pre-tokenizers. Of several with the same patterns, the first is written to files.
pub(super) const TABLE: &[PreTokenizer] = &[
    cleaning(
        "gpt-2",
        &[
            "gpt2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "roberta-bpe",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "mpt",
            "olmo",
            "jais",
            "exaone4",
        ],
        &[GPT2],
    ),
    keeping("trillion", &["granite-docling"], &[GPT2]),
    keeping("smollm", &["command-r"], &[DIGITS, GPT2]),
    cleaning("starcoder", &["refact", "codeshell", "exaone", "minerva-7b", "mellum2"], &[DIGITS, GPT2]),
    PreTokenizer {
        published: &[LLAMA3_PUBLISHED],
        ignore_merges: true,
        bos: Bos::Usual,
        ..cleaning(
            "llama-bpe",
            &["llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"],
            &[LLAMA3],
        )
    },
    PreTokenizer { published: &[LLAMA3_PUBLISHED], ..cleaning("dbrx", &["smaug-bpe", "chatglm-bpe"], &[LLAMA3]) },
    PreTokenizer { published: &[LLAMA3_PUBLISHED], ignore_merges: true, ..cleaning("glm4", &["glm5"], &[LLAMA3]) },
    PreTokenizer {
        ignore_merges: true,
        ..cleaning(
            "minicpm5",
            &[],
            &[
                r"\p{N}{1,3}",
                concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*", spaces!()),
            ],
        )
    },
    cleaning(
        "jais-2",
        &[],
        &[concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
            r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)",
            r"|\s{1,2}(?!\S)|\s{1}"
        )],
    ),
    PreTokenizer {
        published: &[QWEN2_PUBLISHED],
        ..keeping("qwen2", &["deepseek-r1-qwen", "kormo", "f2llmv2", "hunyuan", "solar-open", "grok-2"], &[QWEN2])
    },
    PreTokenizer { published: &[QWEN2_PUBLISHED], ..cleaning("stablelm2", &["megrez"], &[QWEN2]) },
    keeping(
        "qwen35",
        &[],
        &[concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
            spaces!()
        )],
    ),
    keeping("ufakzeka", &[], &[concat!(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*", spaces!())]),
    keeping(
        "bailingmoe",
        &["bailingmoe2", "llada-moe"],
        &[
            r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
    ),
    keeping(
        "seed-coder",
        &[],
        &[concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+", spaces!())],
    ),
    keeping("laguna", &[], &[r"[^\n]+|[\n]+", QWEN2]),
    cleaning(
        "exaone-moe",
        &[],
        &[concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
        )],
    ),
    keeping(
        "deepseek-llm",
        &[],
        &[
            r"[\r\n]",
            CASED_LETTERS,
            "\\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+",
            r"\s+$",
            "[一-龥ࠀ-一가-\u{d7ff}]+",
            r"\p{N}+",
        ],
    ),
    keeping("deepseek-coder", &[], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\u{d7ff}]+", r"\p{N}"]),
    keeping("deepseek-v3", &["hunyuan-dense", "joyai-llm", "hy_v4"], &[r"\p{N}{1,3}", CJK, DEEPSEEK3]),
    keeping(
        "spark2_5",
        &[],
        &[
            r"\p{N}{1,3}",
            CJK,
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##,
            r"\p{N}",
        ],
    ),
    PreTokenizer {
        published: &[
            YOUTU_SCRIPTS,
            concat!(
                all_cased_words!(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"),
                r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
        ],
        ignore_merges: true,
        ..keeping(
            "youtu",
            &[],
            &[
                YOUTU_SCRIPTS,
                concat!(words!(concat!(contractions!(), "?")), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*", spaces!()),
            ],
        )
    },
    cleaning("falcon", &[], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    keeping("poro-chat", &[], &[BLOOM]),
    cleaning("bloom", &["gpt3-finnish"], &[BLOOM]),
    keeping("viking", &[], &[BLOOM, r"\p{N}"]),
    PreTokenizer {
        published: &[concat!(all_cased_words!(""), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")],
        ignore_merges: true,
        bos: Bos::Usual,
        ..keeping(
            "tekken",
            &[],
            &[concat!(cased_words!(r"\p{L}", ""), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*", spaces!())],
        )
    },
    PreTokenizer {
        bos: Bos::Usual,
        ..keeping(
            "chameleon",
            &[],
            &[
                "<sentinel:[0-9]+>",
                "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                GPT2,
            ],
        )
    },
    PreTokenizer {
        published: &[GPT4O_PUBLISHED],
        ..keeping("gpt-4o", &["llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O])
    },
    PreTokenizer {
        ignore_merges: true,
        ..keeping(
            "granite-embed-multi-97m",
            &[],
            &[concat!(
                cased_words!(r"\p{L}\p{M}", concat!(contractions!(), "?")),
                r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*",
                spaces!()
            )],
        )
    },
    PreTokenizer {
        published: &[THOUSANDS, GPT4O_PUBLISHED],
        ..keeping(
            "tiny_aya",
            &["cohere2moe"],
            &[
                THOUSANDS,
                concat!(words!(concat!(contractions!(), "?")), r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*", spaces!()),
            ],
        )
    },
    keeping("superbpe", &[], &[r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
    PreTokenizer {
        published: &[concat!(
            r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )],
        ..keeping(
            "kimi-k2",
            &[],
            &[concat!(
                r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}&&[^\p{Han}]]+",
                contractions!(),
                r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
                spaces!()
            )],
        )
    },
    keeping(
        "afmoe",
        &[],
        &[
            r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
            "[一-鿿㐀-䶿豈-\u{faff}\u{3040}-ゟ゠-ヿ･-ﾟ⼀-\u{2fdf}เ-\u{e7f}\u{e80}-\u{eff}ក-\u{17ff}က-႟ꩠ-ꩿꧠ-\u{a9ff}가-\u{d7af}ᄀ-ᇿ]+",
            DEEPSEEK3,
        ],
    ),
    PreTokenizer {
        spelling: Spelling::Text,
        bos: Bos::Always,
        ..cleaning("gemma4", &["granite-embed-multi-311m"], &[r"[^\n]+|[\n]+"])
    },
    PreTokenizer { spelling: Spelling::Text, ..keeping("sarvam-moe", &[], &[r"[^\n]+|[\n]+"]) },
    DEFAULT,
];
