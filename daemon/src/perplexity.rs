//! `/api/lode/perplexity`.
//!
//! Windows are evaluated one by one, so that other requests run between them, and a disconnected
//! client stops the evaluation.

use api::lode::{PerplexityRequest, PerplexityResponse, Scored};
use axum::Json;
use axum::extract::State;
use protocol::TokenizeRequest;
use scheduler::{Context, Runner};

use crate::acquire::Wish;
use crate::body::Body;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::models::find_named;

pub(crate) async fn perplexity(
    State(daemon): State<Daemon>,
    Body(request): Body<PerplexityRequest>,
) -> Result<Json<PerplexityResponse>, Failed> {
    let model = find_named(&daemon, &request.model).await?;
    let longest = model.parsed_facts.context().max(1);
    if let Some(window) = request.window.filter(|window| !(2..=longest).contains(window)) {
        return Err(Failed::bad_request(format!(
            "a window of {window} tokens, expected 2 to the {longest} that the model knows"
        )));
    }
    // A model that is already loaded stays as it is if the window fits into its context.
    let context = daemon.settings.context.min(longest).max(request.window.unwrap_or(1));
    let lease = daemon.acquire(&model, Wish::of(Context::AtLeast(context), daemon.devices(&model, None, None))).await?;
    let (tokens, bos) = tokens(lease.runner(), request.text).await?;
    let window = request.window.unwrap_or(lease.reply().context) as usize;
    let windows = windows(&tokens, window, request.scored).map_err(Failed::bad_request)?;
    let mut sum = Sum::default();
    for window in &windows {
        let mut tokens = window.tokens.to_vec();
        if let (Some(bos), Some(first)) = (bos, tokens.first_mut()) {
            *first = bos;
        }
        let logprobs = lease.runner().logprobs(&tokens).await?;
        sum.add(&logprobs[window.from - 1..]);
    }
    let mean_nll = sum.nll / sum.scored as f64;
    if !mean_nll.is_finite() {
        return Err(Failed::bad_request(
            "the model gives a token of the text the probability zero, so the mean is infinite",
        ));
    }
    Ok(Json(PerplexityResponse {
        model: model.name,
        tokens: tokens.len() as u64,
        windows: windows.len() as u64,
        scored: sum.scored,
        mean_nll,
        perplexity: mean_nll.exp(),
    }))
}

/// Returns the tokens of a text, and the token that the model puts at the beginning of every text,
/// if there is one.
async fn tokens(runner: &Runner, text: String) -> Result<(Vec<u32>, Option<u32>), Failed> {
    let request = |text| TokenizeRequest { text, add_special: true, parse_special: false };
    let around = runner.tokenize(&request(String::new())).await?;
    let tokens = runner.tokenize(&request(text)).await?;
    let bos = around.first().copied().filter(|first| tokens.first() == Some(first));
    Ok((tokens, bos))
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window<'a> {
    tokens: &'a [u32],
    /// Index of the first scored token. It is at least 1, because the first token has no
    /// predecessor.
    from: usize,
}

/// Cuts a text into windows. Each of them has scored tokens.
fn windows(tokens: &[u32], size: usize, scored: Scored) -> Result<Vec<Window<'_>>, String> {
    let windows: Vec<Window<'_>> = match scored {
        Scored::All => {
            let windows = tokens.chunks(size).filter(|tokens| tokens.len() > 1);
            windows.map(|tokens| Window { tokens, from: 1 }).collect()
        }
        Scored::SecondHalf => {
            // The logits at the middle position predict the token after it.
            let windows = tokens.chunks_exact(size).filter(|tokens| tokens.len() > 2);
            windows.map(|tokens| Window { tokens, from: size / 2 + 1 }).collect()
        }
    };
    if windows.is_empty() {
        let least = if scored == Scored::All { 2 } else { size.max(3) };
        return Err(format!("the text has {} tokens, expected {least} at least; choose a longer one", tokens.len()));
    }
    Ok(windows)
}

/// The sum of negative log-probabilities.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    nll: f64,
    scored: u64,
}

impl Sum {
    fn add(&mut self, logprobs: &[f32]) {
        self.nll -= logprobs.iter().map(|logprob| f64::from(*logprob)).sum::<f64>();
        self.scored += logprobs.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_into_windows() {
        let tokens: Vec<u32> = (0..432).collect();
        let cut = |length: usize, size, scored| {
            let windows = windows(&tokens[..length], size, scored)?;
            let counted = windows.iter().map(|window| window.tokens.len() - window.from).sum::<usize>();
            Ok::<_, String>((windows.len(), counted))
        };
        assert_eq!(cut(432, 4096, Scored::All), Ok((1, 431)));
        assert_eq!(cut(432, 128, Scored::All), Ok((4, 428)));
        // The last one of 129 tokens gets no window, because a single token cannot be scored.
        assert_eq!(cut(129, 128, Scored::All), Ok((1, 127)));
        assert_eq!(cut(432, 128, Scored::SecondHalf), Ok((3, 3 * 63)));
        assert_eq!(cut(5, 5, Scored::SecondHalf), Ok((1, 2)));
        for (length, size, scored) in [(0, 8, Scored::All), (1, 8, Scored::All), (127, 128, Scored::SecondHalf)] {
            assert!(cut(length, size, scored).expect_err("too short").contains("at least"));
        }
    }
}
