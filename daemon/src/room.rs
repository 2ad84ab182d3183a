//! Room for a prompt where the request names no context: how long a context is made for it.
//!
//! A model is loaded with the context of the settings. A request whose prompt and answer need more has the loaded model's KV
//! cache made longer, up to what the model was made for and the memory has room for.

use protocol::{ContextRequest, GenerateRequest, Prompt};
use scheduler::Runner;

use crate::daemon::Daemon;
use crate::error::Failed;
use library::{MemoryNeed, Model};

/// Tokens of room for an answer without a limit, and at most for one with a limit: clients ask for tens of thousands and need few.
const ANSWER: u64 = 2048;
const LONGEST_ANSWER: u64 = 8192;
/// Contexts grow to a multiple of this, in tokens.
const STEP: u64 = 4096;
/// More bytes than a chat template puts around the messages, besides what it makes of tools.
const TEMPLATE: u64 = 2048;
/// By how much templates lengthen the JSON of tools, which they may indent.
const INDENTED: u64 = 4;

/// Tokens that a request needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needed {
    prompt: u64,
    answer: u64,
    /// The prompt may not be shortened.
    whole: bool,
}

impl Needed {
    /// What the longest of these requests needs, where it may be more than `context`; the runner counts the tokens.
    pub(crate) async fn beyond(
        context: u64,
        requests: &[GenerateRequest],
        runner: &Runner,
    ) -> Result<Option<Self>, Failed> {
        let mut most = Self::default();
        for request in requests {
            let answer = request.max_tokens.unwrap_or(ANSWER).min(LONGEST_ANSWER);
            if most_tokens(request).saturating_add(answer) <= context {
                continue;
            }
            let prompt = runner.count(request).await?;
            if prompt.saturating_add(answer) > most.tokens() {
                most = Self { prompt, answer, whole: !request.truncate };
            }
        }
        Ok((most.tokens() > context).then_some(most))
    }

    fn tokens(self) -> u64 {
        self.prompt.saturating_add(self.answer)
    }

    /// The context to make for it: more than is needed now, since a conversation grows.
    fn context(self) -> u64 {
        self.tokens().max(self.prompt.saturating_add(self.prompt / 4)).next_multiple_of(STEP)
    }
}

impl Daemon {
    /// The context that a loaded model gets for what a request needs.
    ///
    /// # Errors
    /// 400 where the prompt may not be shortened and is longer than any context that the model can have here.
    pub(crate) fn longer_context(&self, model: &Model, needed: Needed) -> Result<u64, Failed> {
        let made_for = model.understood.context().max(1);
        let wanted = needed.context().min(made_for);
        let fits = self.fitting_context(model, wanted);
        if needed.whole && needed.prompt >= fits {
            let advice = if fits < made_for {
                format!(
                    "the model takes {made_for}, but memory has no room for its KV cache: set LODE_KV_CACHE_TYPE=q8_0, raise \
                     LODE_MEMORY_LIMIT, or shorten the prompt"
                )
            } else {
                "the model was made for no more: shorten the prompt, or take a model with a longer context".to_owned()
            };
            return Err(Failed::bad_request(protocol::too_long(needed.prompt, fits, &advice)));
        }
        Ok(fits)
    }

    /// The longest context up to `wanted` for which the memory has room.
    fn fitting_context(&self, model: &Model, wanted: u64) -> u64 {
        let fits = |context: u64| {
            let cache = ContextRequest { context, slots: self.settings.parallel, kv_type: self.kv_type() };
            let need = MemoryNeed::of(model, cache);
            match self.settings.memory_limit {
                Some(limit) => need.total() <= limit,
                // Weights are mapped: the system takes their pages back as it likes.
                None => {
                    available_memory().is_none_or(|memory| need.kv_cache.saturating_add(need.activations) <= memory)
                }
            }
        };
        let mut context = wanted;
        while context > STEP && !fits(context) {
            context = (context - 1) / STEP * STEP;
        }
        context
    }
}

/// Upper bound of a prompt's tokens: a token is a byte at least.
fn most_tokens(request: &GenerateRequest) -> u64 {
    let json = |value: &serde_json::Value| value.to_string().len() as u64;
    let prompt = match &request.prompt {
        Prompt::Chat(chat) => {
            // A message's fields are read in many ways; the JSON of all of them is longer than what most make of it.
            let messages = serde_json::to_string(&chat.messages).map_or(u64::MAX, |text| text.len() as u64);
            let tools = chat.tools.as_ref().map_or(0, json).saturating_mul(INDENTED);
            messages.saturating_add(tools).saturating_add(chat.documents.as_ref().map_or(0, json))
        }
        Prompt::Text { text } => text.len() as u64,
        Prompt::Tokens { tokens } => tokens.len() as u64,
        Prompt::Insert { prefix, suffix } => (prefix.len() + suffix.len()) as u64,
    };
    prompt.saturating_add(TEMPLATE).saturating_add(request.before.len() as u64)
}

/// Bytes that can be had without swapping, where the system says.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_leave_room_for_the_answer_and_the_next_turns() {
        let needed = |prompt, answer| Needed { prompt, answer, whole: true }.context();
        assert_eq!(needed(5000, 2048), 8192);
        assert_eq!(needed(20_000, 2048), 28_672);
        assert_eq!(needed(3000, 8192), 12_288);
    }

    #[test]
    fn a_prompt_has_no_more_tokens_than_bytes() {
        let text = GenerateRequest::new(Prompt::Text { text: "a".repeat(9000) });
        assert!(most_tokens(&text) >= 9000);
        let tokens =
            GenerateRequest { before: vec![1; 50], ..GenerateRequest::new(Prompt::Tokens { tokens: vec![1; 50] }) };
        assert!(most_tokens(&tokens) >= 100);
    }
}
