//! Tests that a serialized blueprint is read back, and that impossible values are refused.

use serde_json::{Value, json};

use super::*;
use crate::blueprint::{Rows, View};
use crate::{Document, TensorNames, describe};

fn blueprint() -> Blueprint {
    let config = br#"{"model_type":"gemma3_text","hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,
        "num_attention_heads":4,"vocab_size":320,"max_position_embeddings":256,"head_dim":32,
        "rope_parameters":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,
        "original_max_position_embeddings":64}}"#;
    describe(Document::Config(config), &TensorNames::default()).expect("a config").blueprint
}

#[test]
fn what_is_written_is_read() {
    let text = serde_json::to_string(&blueprint()).expect("it is written");
    assert_eq!(serde_json::from_str::<Blueprint>(&text).expect(&text), blueprint());
    for view in [
        View { rows: Some(Rows::run(1, 2)), ..View::default() },
        View { item: Some(3), ..View::default() },
        View { transposed: true, rows: Some(Rows { first: 1, count: 4, block: 1, stride: 2 }), ..View::default() },
    ] {
        let mut viewed = blueprint();
        viewed.output.as_mut().expect("it has one").projection.weight.view = view;
        let text = serde_json::to_string(&viewed).expect("it is written");
        assert_eq!(serde_json::from_str::<Blueprint>(&text).expect(&text), viewed);
    }
}

#[test]
fn numbers_from_elsewhere_are_checked() {
    let good = serde_json::to_value(blueprint()).expect("it is written");
    let attention = |key: &str| format!("/layers/1/mixer/attention/{key}");
    for (pointer, value, expect) in [
        ("/vocabulary".to_owned(), json!(0), "vocabulary size is 0"),
        ("/hidden".to_owned(), json!(u64::MAX), "hidden size"),
        ("/context".to_owned(), json!(0), "context length"),
        ("/causal".to_owned(), json!(false), "no next one"),
        ("/layers".to_owned(), json!([]), "number of layers is 0"),
        (attention("kv_heads"), json!(3), "cannot share 3"),
        (attention("head_dim"), json!(7), "head size is 7"),
        (attention("window"), json!(0), "sliding window is 0"),
        (attention("scale"), json!(-1.0), "positive"),
        (attention("layout"), json!("diagonal"), "`diagonal`"),
        (attention("rope/theta"), json!(0.0), "positive"),
        (attention("rope/scaling/llama3/high_frequency_factor"), json!(0.5), "no less"),
        ("/layers/1/mixer".to_owned(), json!({"mamba": {}}), "mamba"),
        ("/layers/0/ffn/gated/width".to_owned(), json!(0), "intermediate size"),
        ("/layers/0/ffn/gated/activation".to_owned(), json!("relu6"), "`relu6`"),
        ("/layers/0/ffn_residual/scale".to_owned(), json!(0.0), "positive"),
        ("/norm/epsilon".to_owned(), json!(0.0), "positive"),
        ("/output/projection/weight".to_owned(), json!("w".repeat(5000)), "5000 bytes"),
        ("/embedding/weight".to_owned(), json!("w".repeat(5000)), "5000 bytes"),
        (
            "/output/projection/weight".to_owned(),
            json!({"name": "w", "view": {"rows": {"first": u64::MAX, "count": 2, "block": 2, "stride": 2}}}),
            "the view of `w`",
        ),
        ("/layers/1/ffn_residual/after/weight".to_owned(), json!("w".repeat(5000)), "5000 bytes"),
    ] {
        let mut wrong: Value = good.clone();
        *wrong.pointer_mut(&pointer).expect(&pointer) = value;
        let error = serde_json::from_value::<Blueprint>(wrong).expect_err(&pointer).to_string();
        assert!(error.contains(expect), "{pointer}: `{error}` should say `{expect}`");
    }
}
