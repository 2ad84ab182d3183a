//! The table of call syntaxes.

use super::{Body, CallSyntax, Ends, Mark, Spelling};

/// Several calls at once, as in Apriel and `MiniMax` M1.
const TOOL_CALLS: Mark = Mark { open: "<tool_calls>", ends: Ends::At("</tool_calls>"), body: Body::Json, whole: false };

/// The syntax of Hermes and Qwen, and of many later models.
const TOOL_CALL: Mark = Mark { open: "<tool_call>", ends: Ends::At("</tool_call>"), body: Body::Json, whole: false };

const HERMES: Spelling =
    Spelling { before: "<tool_call>\n{\"name\": \"", between: "\", \"arguments\": ", after: "}\n</tool_call>" };

/// The syntaxes that a template is searched for, in this order.
pub(super) static ALL: &[CallSyntax] = &[
    CallSyntax {
        name: "deepseek",
        evidence: &["<｜tool▁calls▁begin｜>"],
        marks: &[Mark {
            open: "<｜tool▁calls▁begin｜>",
            ends: Ends::At("<｜tool▁calls▁end｜>"),
            body: Body::Sections {
                begin: "<｜tool▁call▁begin｜>",
                separator: "<｜tool▁sep｜>",
                end: "<｜tool▁call▁end｜>",
            },
            whole: false,
        }],
        unmarked: false,
        spelling: Spelling {
            before: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            between: "\n```json\n",
            after: "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        },
        within: &["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"],
    },
    CallSyntax {
        name: "kimi",
        evidence: &["<|tool_calls_section_begin|>"],
        marks: &[Mark {
            open: "<|tool_calls_section_begin|>",
            ends: Ends::At("<|tool_calls_section_end|>"),
            body: Body::Sections {
                begin: "<|tool_call_begin|>",
                separator: "<|tool_call_argument_begin|>",
                end: "<|tool_call_end|>",
            },
            whole: false,
        }],
        unmarked: false,
        spelling: Spelling {
            before: "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
            between: ":0<|tool_call_argument_begin|>",
            after: "<|tool_call_end|><|tool_calls_section_end|>",
        },
        within: &["<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"],
    },
    // Gemma 4.
    CallSyntax {
        name: "gemma",
        evidence: &["<|tool_call>call:"],
        marks: &[Mark {
            open: "<|tool_call>",
            ends: Ends::At("<tool_call|>"),
            body: Body::Braces { quote: "<|\"|>" },
            whole: false,
        }],
        unmarked: false,
        spelling: Spelling {
            before: "<|tool_call>{\"name\": \"",
            between: "\", \"arguments\": ",
            after: "}<tool_call|>",
        },
        within: &["<|\"|>"],
    },
    CallSyntax {
        name: "functiongemma",
        evidence: &["<start_function_call>"],
        marks: &[Mark {
            open: "<start_function_call>",
            ends: Ends::At("<end_function_call>"),
            body: Body::Braces { quote: "<escape>" },
            whole: false,
        }],
        unmarked: false,
        spelling: Spelling {
            before: "<start_function_call>{\"name\": \"",
            between: "\", \"arguments\": ",
            after: "}<end_function_call>",
        },
        within: &["<escape>"],
    },
    // MiniMax M2.
    CallSyntax {
        name: "minimax",
        evidence: &["<minimax:tool_call>"],
        marks: &[Mark {
            open: "<minimax:tool_call>",
            ends: Ends::At("</minimax:tool_call>"),
            body: Body::Invoke { prefix: "" },
            whole: false,
        }],
        unmarked: false,
        spelling: Spelling {
            before: "<minimax:tool_call>{\"name\": \"",
            between: "\", \"arguments\": ",
            after: "}</minimax:tool_call>",
        },
        within: &[],
    },
    // DeepSeek V3.2.
    CallSyntax {
        name: "dsml",
        // Templates keep the mark in a variable.
        evidence: &["｜DSML｜"],
        marks: &[
            Mark {
                open: "<｜DSML｜function_calls>",
                ends: Ends::At("</｜DSML｜function_calls>"),
                body: Body::Invoke { prefix: "｜DSML｜" },
                whole: false,
            },
            Mark {
                open: "<｜DSML｜tool_calls>",
                ends: Ends::At("</｜DSML｜tool_calls>"),
                body: Body::Invoke { prefix: "｜DSML｜" },
                whole: false,
            },
        ],
        unmarked: false,
        spelling: Spelling {
            before: "<｜DSML｜tool_calls>{\"name\": \"",
            between: "\", \"arguments\": ",
            after: "}</｜DSML｜tool_calls>",
        },
        within: &["｜DSML｜"],
    },
    // GigaChat 3.
    CallSyntax {
        name: "gigachat",
        evidence: &["<|function_call|>", "function call<|role_sep|>"],
        marks: &[
            Mark { open: "<|function_call|>", ends: Ends::Last, body: Body::Json, whole: false },
            Mark { open: "function call<|role_sep|>", ends: Ends::Last, body: Body::Json, whole: false },
        ],
        unmarked: false,
        spelling: Spelling { before: "<|function_call|>{\"name\": \"", between: "\", \"arguments\": ", after: "}" },
        within: &["<|role_sep|>"],
    },
    // Nemotron Nano 2.
    CallSyntax {
        name: "nemotron",
        evidence: &["<TOOLCALL>"],
        marks: &[Mark { open: "<TOOLCALL>", ends: Ends::At("</TOOLCALL>"), body: Body::Json, whole: false }],
        unmarked: false,
        spelling: Spelling {
            before: "<TOOLCALL>[{\"name\": \"",
            between: "\", \"arguments\": ",
            after: "}]</TOOLCALL>",
        },
        within: &[],
    },
    // Solar Open.
    CallSyntax {
        name: "solar",
        evidence: &["<|tool_call:args|>"],
        marks: &[Mark {
            open: "<|tool_calls|>",
            ends: Ends::At("<|calls|>"),
            body: Body::Sections {
                begin: "<|tool_call:name|>",
                separator: "<|tool_call:args|>",
                end: "<|tool_call:end|>",
            },
            whole: false,
        }],
        unmarked: false,
        spelling: Spelling {
            before: "<|tool_calls|><|tool_call:begin|>0<|tool_call:name|>",
            between: "<|tool_call:args|>",
            after: "<|tool_call:end|><|calls|>",
        },
        within: &["<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"],
    },
    // Apertus.
    CallSyntax {
        name: "apertus",
        evidence: &["<|tools_prefix|>"],
        marks: &[Mark {
            open: "<|tools_prefix|>",
            ends: Ends::At("<|tools_suffix|>"),
            body: Body::Named,
            whole: false,
        }],
        unmarked: false,
        spelling: Spelling {
            before: "<|tools_prefix|>[{\"name\": \"",
            between: "\", \"arguments\": ",
            after: "}]<|tools_suffix|>",
        },
        within: &[],
    },
    CallSyntax {
        name: "mistral",
        evidence: &["[TOOL_CALLS]"],
        marks: &[Mark { open: "[TOOL_CALLS]", ends: Ends::Last, body: Body::Json, whole: false }],
        unmarked: false,
        spelling: Spelling { before: "[TOOL_CALLS][{\"name\": \"", between: "\", \"arguments\": ", after: "}]" },
        within: &["[ARGS]", "[CALL_ID]"],
    },
    // Qwen3-Coder, Nemotron.
    CallSyntax {
        name: "functions",
        evidence: &["<function="],
        marks: &[
            Mark { open: "<tool_call>", ends: Ends::At("</tool_call>"), body: Body::Tagged, whole: false },
            Mark { open: "<function=", ends: Ends::At("</function>"), body: Body::Tagged, whole: true },
        ],
        unmarked: false,
        spelling: HERMES,
        within: &[],
    },
    // GLM.
    CallSyntax {
        name: "keys",
        evidence: &["<arg_key>"],
        marks: &[Mark { open: "<tool_call>", ends: Ends::At("</tool_call>"), body: Body::Tagged, whole: false }],
        unmarked: false,
        spelling: HERMES,
        within: &["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    },
    // Phi 4 mini.
    CallSyntax {
        name: "phi",
        evidence: &["<|/tool_call|>"],
        marks: &[Mark { open: "<|tool_call|>", ends: Ends::At("<|/tool_call|>"), body: Body::Json, whole: false }],
        unmarked: false,
        spelling: Spelling {
            before: "<|tool_call|>[{\"name\": \"",
            between: "\", \"arguments\": ",
            after: "}]<|/tool_call|>",
        },
        within: &[],
    },
    CallSyntax {
        name: "granite",
        evidence: &["<|tool_call|>"],
        marks: &[Mark { open: "<|tool_call|>", ends: Ends::Last, body: Body::Json, whole: false }],
        unmarked: false,
        spelling: Spelling { before: "<|tool_call|>[{\"name\": \"", between: "\", \"arguments\": ", after: "}]" },
        within: &[],
    },
    // LFM 2.
    CallSyntax {
        name: "liquid",
        evidence: &["<|tool_call_start|>"],
        marks: &[Mark {
            open: "<|tool_call_start|>",
            ends: Ends::At("<|tool_call_end|>"),
            body: Body::Python,
            whole: false,
        }],
        unmarked: false,
        spelling: Spelling {
            before: "<|tool_call_start|>[{\"name\": \"",
            between: "\", \"arguments\": ",
            after: "}]<|tool_call_end|>",
        },
        within: &[],
    },
    // Command R and A.
    CallSyntax {
        name: "command",
        evidence: &["<|START_ACTION|>"],
        marks: &[Mark { open: "<|START_ACTION|>", ends: Ends::At("<|END_ACTION|>"), body: Body::Json, whole: false }],
        unmarked: false,
        spelling: Spelling {
            before: "<|START_ACTION|>[{\"tool_name\": \"",
            between: "\", \"parameters\": ",
            after: "}]<|END_ACTION|>",
        },
        within: &[],
    },
    // OLMo 3.
    CallSyntax {
        name: "olmo",
        evidence: &["<function_calls>"],
        marks: &[Mark {
            open: "<function_calls>",
            ends: Ends::At("</function_calls>"),
            body: Body::Python,
            whole: false,
        }],
        unmarked: false,
        spelling: Spelling {
            before: "<function_calls>{\"name\": \"",
            between: "\", \"arguments\": ",
            after: "}</function_calls>",
        },
        within: &[],
    },
    CallSyntax {
        name: "hermes",
        evidence: &["<tool_call>"],
        marks: &[TOOL_CALL, TOOL_CALLS],
        unmarked: false,
        spelling: HERMES,
        within: &[],
    },
    CallSyntax {
        name: "llama",
        evidence: &["<|python_tag|>", "<|python_start|>", "ipython"],
        marks: &[
            Mark { open: "<|python_tag|>", ends: Ends::Last, body: Body::Json, whole: false },
            // Llama 4.
            Mark { open: "<|python_start|>", ends: Ends::At("<|python_end|>"), body: Body::Json, whole: false },
        ],
        unmarked: true,
        spelling: Spelling { before: "{\"name\": \"", between: "\", \"parameters\": ", after: "}" },
        within: &[],
    },
    // Gemma 3.
    CallSyntax {
        name: "tool_code",
        evidence: &["```tool_code"],
        marks: &[
            Mark { open: "```tool_code\n", ends: Ends::At("```"), body: Body::Python, whole: false },
            Mark { open: "```json\n", ends: Ends::At("```"), body: Body::Unmarked, whole: false },
        ],
        unmarked: true,
        spelling: Spelling { before: "{\"name\": \"", between: "\", \"parameters\": ", after: "}" },
        within: &[],
    },
];

/// For templates that offer tools without specifying a call syntax.
pub(super) static GENERIC: CallSyntax = CallSyntax {
    name: "generic",
    evidence: &[],
    marks: &[
        TOOL_CALL,
        TOOL_CALLS,
        Mark { open: "```json\n", ends: Ends::At("```"), body: Body::Unmarked, whole: false },
        Mark { open: "```tool_code\n", ends: Ends::At("```"), body: Body::Python, whole: false },
    ],
    unmarked: true,
    spelling: Spelling { before: "{\"name\": \"", between: "\", \"arguments\": ", after: "}" },
    within: &[],
};
