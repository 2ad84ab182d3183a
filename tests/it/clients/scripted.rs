//! A model with scripted output: its chat template chooses the line by the conversation.
//!
//! Coding agents need a model that calls their tools, and a model with random weights does not.
//! Here every line is one token, and the chat template ends the prompt with the token that triggers
//! it. The only layer adds nothing, so the hidden state is the embedding of the last token, a unit
//! vector. The output projection of the line's token has the same direction. The end-of-text token
//! follows a line.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{read, tiny_model};

/// Width of the model: one direction for each line, and one for the end.
const WIDTH: usize = 64;
/// The token that ends an answer, `<|end_of_text|>` of the tiny model.
const END: usize = 315;
/// The number of tokens in the tiny model's vocabulary.
const VOCABULARY: usize = 320;

/// A line of the model: its output if the last message of the user contains `asked`, and no tool
/// result follows that message.
pub(crate) struct Line {
    /// The text that the message contains.
    pub(crate) asked: &'static str,
    /// The tool that must be offered, if any.
    pub(crate) tool: Option<&'static str>,
    /// The output.
    pub(crate) says: String,
}

/// Formats a tool call in the dialect of the template.
pub(crate) fn call(tool: &str, arguments: &Value) -> String {
    format!("<tool_call>\n{}\n</tool_call>", json!({"name": tool, "arguments": arguments}))
}

/// Writes a model with these lines, and with `after` as its output after a tool result.
pub(crate) fn write(folder: &Path, lines: &[Line], after: &str) {
    // The first line is also the default if no line matches.
    let texts: Vec<&str> = lines.iter().map(|line| line.says.as_str()).chain([after]).collect();
    assert!(texts.len() < WIDTH, "each line needs a direction");
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": WIDTH,
        "num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1, "head_dim": WIDTH,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": false, "vocab_size": VOCABULARY + 2 * texts.len(), "eos_token_id": END, "bos_token_id": 314,
    });
    put(folder, "config.json", &config);
    let mut tokenizer: Value = serde_json::from_slice(&read(&tiny_model().join("tokenizer.json"))).expect("JSON");
    let added = tokenizer["added_tokens"].as_array_mut().expect("added tokens");
    for (at, text) in texts.iter().enumerate() {
        for (id, content) in [(asks(at), format!("<|say-{at}|>")), (says(at), (*text).to_owned())] {
            added.push(json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": false}));
        }
    }
    put(folder, "tokenizer.json", &tokenizer);
    let settings = json!({"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>",
        "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template(lines)});
    put(folder, "tokenizer_config.json", &settings);
    std::fs::write(folder.join("model.safetensors"), weights(texts.len())).expect("the weights are written");
}

fn put(folder: &Path, name: &str, document: &Value) {
    std::fs::write(folder.join(name), document.to_string()).expect("a document is written");
}

/// Returns the token that triggers a line.
fn asks(line: usize) -> usize {
    VOCABULARY + 2 * line
}

/// Returns the token of a line.
fn says(line: usize) -> usize {
    asks(line) + 1
}

/// Returns a chat template that writes the conversation with calls and tools, which determine the
/// dialect, and ends with the token that triggers the line.
fn template(lines: &[Line]) -> String {
    let mut choose = String::new();
    for (at, line) in lines.iter().enumerate() {
        let tool = line.tool.map(|tool| format!(" and '\"name\": \"{tool}\"' in offered")).unwrap_or_default();
        let _ =
            write!(choose, "{{%- if '{}' in m.content{tool} %}}{{%- set ns.line = {at} %}}{{%- endif %}}", line.asked);
    }
    format!(
        "{{%- set ns = namespace(line=0) -%}}{{%- set offered = (tools or []) | tojson -%}}\
         {{%- for m in messages -%}}\
         {{%- if m.role == 'user' -%}}{choose}{{%- endif -%}}\
         {{%- if m.role == 'tool' -%}}{{%- set ns.line = {after} -%}}{{%- endif -%}}\
         [{{{{ m.role }}}}]{{{{ m.content }}}}\
         {{%- for c in m.tool_calls or [] -%}}<tool_call>{{{{ c.function | tojson }}}}</tool_call>{{%- endfor -%}}\
         {{%- endfor -%}}\
         {{%- if tools -%}}<tool_call></tool_call>{{{{ offered }}}}{{%- endif -%}}\
         <|say-{{{{ ns.line }}}}|>",
        after = lines.len()
    )
}

/// Returns the weights as a safetensors file.
fn weights(lines: usize) -> Vec<u8> {
    let rows = VOCABULARY + 2 * lines;
    let table = |size: f32, direction: &dyn Fn(usize) -> Option<usize>| -> Vec<f32> {
        let row = |token: usize| {
            let mut row = vec![0.0; WIDTH];
            if let Some(at) = direction(token) {
                row[at] = size;
            }
            row
        };
        (0..rows).flat_map(row).collect()
    };
    let line_of = |token: usize, of: fn(usize) -> usize| (0..lines).find(|line| of(*line) == token);
    // A token that triggers no line triggers the end.
    let embedding = table(1.0, &|token| Some(line_of(token, asks).unwrap_or(WIDTH - 1)));
    // The logit is so high that sampling at any temperature gives the same token.
    let output = table(10.0, &|token| if token == END { Some(WIDTH - 1) } else { line_of(token, says) });
    let square = vec![0.0; WIDTH * WIDTH];
    let ones = vec![1.0; WIDTH];
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![rows, WIDTH], embedding),
        ("lm_head.weight".to_owned(), vec![rows, WIDTH], output),
        ("model.norm.weight".to_owned(), vec![WIDTH], ones.clone()),
    ];
    for norm in ["input_layernorm", "post_attention_layernorm"] {
        tensors.push((format!("model.layers.0.{norm}.weight"), vec![WIDTH], ones.clone()));
    }
    for module in [
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    ] {
        tensors.push((format!("model.layers.0.{module}.weight"), vec![WIDTH, WIDTH], square.clone()));
    }
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, numbers) in tensors {
        let begin = data.len();
        data.extend(numbers.iter().flat_map(|number: &f32| number.to_le_bytes()));
        header.insert(name, json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]}));
    }
    let header = Value::Object(header).to_string().into_bytes();
    [(header.len() as u64).to_le_bytes().as_slice(), &header, &data].concat()
}
