//! The runner's engine: concurrent requests, slots and their cached prefixes, types of the KV
//! cache, embeddings.

use serde_json::{Value, json};

use crate::server::{Runner, Server, in_float32};
use crate::support::{numbers, tiny_model};

/// Starts a daemon with the tiny model and so many slots.
async fn started(slots: &str) -> (Server, Runner) {
    started_with(&[("LODE_NUM_PARALLEL", slots)]).await
}

async fn started_with(environment: &[(&str, &str)]) -> (Server, Runner) {
    let server = Server::start(environment).await;
    server.create("tiny", &tiny_model()).await;
    let runner = server.runner("tiny").await;
    (server, runner)
}

/// Returns tokens of the tiny model's vocabulary without special tokens.
fn prompt(length: u64, seed: u64) -> Vec<u64> {
    (0..length).map(|at| (at * 37 + seed * 101 + at * at * seed) % 300).collect()
}

/// Returns a request for a greedy continuation by so many tokens. Its logit bias excludes the
/// tokens that would end it.
fn greedy(tokens: &[u64], most: u64) -> Value {
    json!({
        "prompt": {"kind": "tokens", "tokens": tokens},
        "sampling": {"temperature": 0.0},
        "max_tokens": most,
        "logit_bias": [[314, -1e9], [315, -1e9], [318, -1e9], [319, -1e9]],
        "tell_tokens": true,
    })
}

/// Returns the last event of a generation, which must be `done`.
async fn done(runner: &Runner, request: &Value) -> Value {
    let events = runner.events(request).await;
    let last = events.last().expect("at least an event").clone();
    assert_eq!(last["event"], "done", "{last}");
    last
}

/// Replaces the KV cache with an empty one.
async fn context(runner: &Runner, context: u64, slots: u64, kv_type: &str) -> Value {
    let (status, reply) =
        runner.call("context", &json!({"context": context, "slots": slots, "kv_type": kv_type})).await;
    assert_eq!(status, 200, "{reply}");
    reply
}

#[tokio::test]
async fn four_at_a_time_answer_as_one_after_the_other() {
    let (_server, runner) = started("4").await;
    // Prompts of different lengths: some requests are in prefill while others decode.
    let requests: Vec<Value> = [3, 40, 90, 9].iter().zip(1..).map(|(n, seed)| greedy(&prompt(*n, seed), 60)).collect();
    let mut alone = Vec::new();
    for request in &requests {
        context(&runner, 256, 4, "f16").await;
        alone.push(done(&runner, request).await["tokens"].clone());
    }
    context(&runner, 256, 4, "f16").await;
    let (a, b, c, d) = tokio::join!(
        done(&runner, &requests[0]),
        done(&runner, &requests[1]),
        done(&runner, &requests[2]),
        done(&runner, &requests[3])
    );
    for (together, alone) in [a, b, c, d].iter().zip(&alone) {
        assert_eq!(&together["tokens"], alone);
        assert_eq!(together["usage"]["cached_tokens"], 0);
    }
}

#[tokio::test]
async fn conversations_go_on_in_their_slots() {
    let (_server, runner) = started("2").await;
    let mut conversations = [prompt(30, 1), prompt(50, 2)];
    for turn in 0..3 {
        for conversation in &mut conversations {
            let end = done(&runner, &greedy(conversation, 8)).await;
            let all = numbers(&end["tokens"]);
            // The cache has all tokens but the 5 new ones and the last token of the output, which
            // was never computed.
            let expected = if turn == 0 { 0 } else { conversation.len() - 6 };
            assert_eq!(end["usage"]["cached_tokens"], expected, "turn {turn}");
            assert_eq!(end["usage"]["prompt_tokens"], conversation.len());
            *conversation = [all, prompt(5, 7)].concat();
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_slot() {
    let (_server, runner) = started("1").await;
    // More output than fits into the buffers on the path, and no reader: without the disconnect it
    // would hold its slot forever.
    let mut endless = greedy(&prompt(5, 1), 1 << 40);
    endless["shift"] = true.into();
    endless["top_logprobs"] = 50.into();
    let mut stream = runner.open("generate", &endless).await;
    // The response head precedes the preparation of the prompt; the first token shows that the slot
    // is taken.
    stream.chunk().await.expect("a stream").expect("a first token");
    let waiting = greedy(&prompt(5, 2), 3);
    let waits = done(&runner, &waiting);
    tokio::pin!(waits);
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), &mut waits).await;
    assert!(early.is_err(), "there is only one slot");
    drop(stream);
    assert_eq!(waits.await["reason"], "length");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn as_many_threads_compute_as_is_said() {
    let server = Server::start(&[("LODE_THREADS", "3")]).await;
    server.create("tiny", &tiny_model()).await;
    let runner = server.runner("tiny").await;
    done(&runner, &greedy(&prompt(5, 1), 3)).await;
    let tasks = format!("/proc/{}/task", server.runner_pid().await);
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).expect("a name");
    let names = std::fs::read_dir(tasks).expect("threads").map(|task| name(task.expect("a thread")));
    // The engine's own thread is the third one.
    assert_eq!(names.filter(|name| name.starts_with("compute-")).count(), 2);
}

#[tokio::test]
async fn an_embedding_takes_no_conversation_away() {
    let (_server, runner) = started("1").await;
    let conversation = greedy(&prompt(40, 1), 5);
    let first = done(&runner, &conversation).await;
    let inputs = json!([{"kind": "tokens", "tokens": prompt(30, 7)}, {"kind": "tokens", "tokens": prompt(3, 8)}]);
    let (status, vectors) = runner.call("embed", &json!({"inputs": inputs, "truncate": true})).await;
    assert_eq!((status, &vectors["prompt_tokens"]), (200, &json!([30, 3])));
    let again = done(&runner, &conversation).await;
    assert_eq!((&again["usage"]["cached_tokens"], &again["tokens"]), (&json!(39), &first["tokens"]));
    let (_, alone) = runner.call("embed", &json!({"inputs": [inputs[1]], "truncate": true})).await;
    assert_eq!(alone["embeddings"][0], vectors["embeddings"][1]);
}

#[tokio::test]
async fn a_prompt_that_begins_like_another_slots_takes_that_over() {
    let (_server, runner) = started("2").await;
    let expected = done(&runner, &greedy(&[prompt(100, 1), vec![5]].concat(), 8)).await;
    context(&runner, 256, 2, "f16").await;
    // One slot has a longer cached sequence without a common prefix.
    done(&runner, &greedy(&prompt(180, 3), 8)).await;
    // The other slot is busy with the same prefix, until its client disconnects.
    let mut endless = greedy(&[prompt(100, 1), vec![9]].concat(), 1 << 40);
    endless["shift"] = true.into();
    endless["top_logprobs"] = 50.into();
    let mut stream = runner.open("generate", &endless).await;
    stream.chunk().await.expect("a stream").expect("a first token");
    let other = done(&runner, &greedy(&[prompt(100, 1), vec![5]].concat(), 8)).await;
    assert_eq!((&other["usage"]["cached_tokens"], &other["tokens"]), (&json!(100), &expected["tokens"]));
    drop(stream);
}

#[tokio::test]
async fn a_new_context_keeps_the_weights() {
    let (server, runner) = started("1").await;
    let (pid, before) = (server.runner_pid().await, done(&runner, &greedy(&prompt(20, 1), 10)).await);
    // Layers, keys and values, key heads, and bytes of a row of 16 elements.
    for (kv_type, row) in [("f32", 64), ("f16", 32), ("bf16", 32), ("q8_0", 34)] {
        let reply = context(&runner, 128, 3, kv_type).await;
        assert_eq!(reply["kv_cache"], 3 * 128 * 2 * 2 * 2 * row, "{kv_type}");
        assert_eq!((&reply["context"], &reply["slots"], &reply["kv_type"]), (&json!(128), &json!(3), &json!(kv_type)));
        assert!(reply["private"].as_u64().is_some_and(|bytes| bytes > 0));
        let after = done(&runner, &greedy(&prompt(20, 1), 10)).await;
        assert_eq!(after["usage"]["cached_tokens"], 0);
        if kv_type == "f16" {
            assert_eq!(after["tokens"], before["tokens"]);
        }
    }
    assert_eq!(runner.status().await["pid"], pid);
}

#[tokio::test]
async fn cache_types_differ_by_their_rounding_only() {
    // Attention at decode rounds differently than at prefill, and BF16 products would amplify the
    // difference.
    let (_server, runner) = started_with(&[in_float32()]).await;
    let tokens = prompt(200, 3);
    context(&runner, 256, 1, "f32").await;
    let exact = runner.logits(&tokens, false).await;
    let spread = exact.iter().flatten().fold(0.0f32, |most, logit| most.max(logit.abs()));
    for (kv_type, bound) in [("f32", 1e-5), ("f16", 2e-3), ("bf16", 2e-2), ("q8_0", 5e-2)] {
        context(&runner, 256, 1, kv_type).await;
        for stepwise in [false, true] {
            let logits = runner.logits(&tokens, stepwise).await;
            let differences = logits.iter().flatten().zip(exact.iter().flatten()).map(|(a, b)| (a - b).abs());
            let worst = differences.fold(0.0, f32::max) / spread;
            assert!(worst <= bound, "{kv_type}, stepwise {stepwise}: off by {worst} of the largest logit");
        }
    }
}

#[tokio::test]
async fn a_full_context_ends_or_shifts() {
    let (_server, runner) = started("1").await;
    context(&runner, 32, 1, "f16").await;
    let mut request = greedy(&prompt(20, 1), 100);
    let ended = done(&runner, &request).await;
    assert_eq!((&ended["reason"], &ended["usage"]["tokens"]), (&json!("length"), &json!(13)));
    request["shift"] = true.into();
    request["keep"] = 4.into();
    let shifted = done(&runner, &request).await;
    assert_eq!((&shifted["reason"], &shifted["usage"]["tokens"]), (&json!("length"), &json!(100)));
    let (ended, shifted) = (numbers(&ended["tokens"]), numbers(&shifted["tokens"]));
    assert_eq!(shifted[..33], ended[..33], "until it is full nothing differs");
    // The context after the shift: the first 4 tokens, which are kept, and the later half of the
    // remaining ones.
    let left = [&shifted[..4], &shifted[18..33]].concat();
    let next = done(&runner, &greedy(&left, 1)).await;
    assert_eq!(numbers(&next["tokens"]).last(), Some(&shifted[33]));
}

#[tokio::test]
async fn prompts_that_do_not_fit_are_told() {
    let (_server, runner) = started("1").await;
    context(&runner, 32, 1, "f16").await;
    let mut request = greedy(&prompt(40, 1), 4);
    assert_eq!(done(&runner, &request).await["usage"]["truncated_tokens"], 24);
    request["truncate"] = false.into();
    let events = runner.events(&request).await;
    let error = events[0]["error"].as_str().unwrap_or_default();
    assert!(error.starts_with("the input length exceeds the context length: 40 tokens > 32 maximum;"), "{events:?}");
    assert_eq!((events.len(), &events[0]["kind"]), (1, &json!("bad_request")));
    for bad in [json!({"kind": "tokens", "tokens": []}), json!({"kind": "tokens", "tokens": [999]})] {
        let events = runner.events(&json!({"prompt": bad})).await;
        assert_eq!((&events[0]["event"], &events[0]["kind"]), (&json!("error"), &json!("bad_request")), "{bad}");
    }
}

#[tokio::test]
async fn tokens_before_and_biases_count() {
    let (_server, runner) = started("1").await;
    let whole = prompt(30, 4);
    let plain = done(&runner, &greedy(&whole, 5)).await;
    let mut split = greedy(&whole[10..], 5);
    split["before"] = json!(whole[..10]);
    assert_eq!(done(&runner, &split).await["tokens"], plain["tokens"]);
    let mut biased = greedy(&whole, 5);
    biased["logit_bias"] = json!([[77, 1000.0]]);
    assert_eq!(numbers(&done(&runner, &biased).await["tokens"])[30..], [77; 5]);
}

#[tokio::test]
async fn embeddings_have_the_length_one() {
    let (_server, runner) = started("2").await;
    let embed = async |request: Value| runner.call("embed", &request).await;
    let inputs = json!([{"kind": "text", "text": "some words"}, {"kind": "tokens", "tokens": [5, 6, 7]}]);
    let (status, both) = embed(json!({"inputs": inputs, "truncate": true})).await;
    assert_eq!(status, 200, "{both}");
    let vectors = self::vectors(&both);
    assert_eq!(vectors.iter().map(Vec::len).collect::<Vec<_>>(), [64, 64]);
    assert_eq!(both["prompt_tokens"][1], 3);
    for vector in &vectors {
        assert!((length(vector) - 1.0).abs() < 1e-5, "{vector:?}");
    }
    let (_, cut) = embed(json!({"inputs": [inputs[1]], "truncate": true, "dimensions": 16})).await;
    let cut = &self::vectors(&cut)[0];
    let scale = length(&vectors[1][..16]);
    assert!(cut.len() == 16 && cut.iter().zip(&vectors[1]).all(|(a, b)| (a * scale - b).abs() < 1e-6));
    // An input that is longer than the context.
    let long = json!([{"kind": "tokens", "tokens": prompt(300, 1)}]);
    let (_, answer) = embed(json!({"inputs": long, "truncate": true})).await;
    assert_eq!((&answer["truncated_tokens"], &answer["prompt_tokens"]), (&json!(44), &json!([256])));
    let (status, error) = embed(json!({"inputs": long, "truncate": false})).await;
    let told = error["error"].as_str().unwrap_or_default();
    assert!(
        status == 400 && told.starts_with("the input length exceeds the context length: 300 tokens > 256"),
        "{error}"
    );
}

fn vectors(answer: &Value) -> Vec<Vec<f64>> {
    let vectors = answer["embeddings"].as_array().expect("vectors").iter();
    vectors.map(|v| v.as_array().expect("a vector").iter().map(|x| x.as_f64().expect("a number")).collect()).collect()
}

fn length(vector: &[f64]) -> f64 {
    vector.iter().map(|x| x * x).sum::<f64>().sqrt()
}
