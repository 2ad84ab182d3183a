//! The context length for prompts of requests that set none.
//!
//! A model is loaded with the configured context. If prompt and answer of a request need more, the
//! loaded model's KV cache grows, up to the context that the model was trained for and that fits
//! into memory.

use std::path::Path;

use protocol::limits::PICTURE_TOKENS;
use protocol::{ContextRequest, GenerateRequest, Prompt};
use scheduler::Runner;

use crate::control_groups::{self, number_of};
use crate::daemon::Daemon;
use crate::error::Failed;
use library::{MemoryNeed, Model};

/// Tokens that are reserved for an answer without a limit, and (`LONGEST_ANSWER`) the most for an
/// answer with a limit. Clients often set limits of tens of thousands of tokens and use few.
const ANSWER: u64 = 2048;
const LONGEST_ANSWER: u64 = 8192;
/// Contexts grow to a multiple of this number of tokens.
const STEP: u64 = 4096;
/// An upper bound of the bytes that a chat template adds around messages, apart from tools.
const TEMPLATE: u64 = 1024;
/// The factor by which templates may lengthen the JSON of tools, for example by indenting it.
const INDENTED: u64 = 4;

/// The number of tokens that a request needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needed {
    prompt: u64,
    answer: u64,
    /// Whether the prompt must not be truncated.
    whole: bool,
}

impl Needed {
    /// Returns the needs of the longest of these requests if they exceed `context`. The runner
    /// counts the tokens.
    pub(crate) async fn beyond(
        context: u64,
        requests: &[GenerateRequest],
        runner: &Runner,
    ) -> Result<Option<Self>, Failed> {
        let mut most = Self::default();
        for request in requests {
            if !Self::may_exceed(context, std::slice::from_ref(request)) {
                continue;
            }
            let answer = answer(request);
            let prompt = runner.count(request).await?;
            if prompt.saturating_add(answer) > most.tokens() {
                most = Self { prompt, answer, whole: !request.truncate };
            }
        }
        Ok((most.tokens() > context).then_some(most))
    }

    /// Whether one of these requests may need more than `context`, estimated from the bytes of its
    /// prompt.
    pub(crate) fn may_exceed(context: u64, requests: &[GenerateRequest]) -> bool {
        requests.iter().any(|request| most_tokens(request).saturating_add(answer(request)) > context)
    }

    fn tokens(self) -> u64 {
        self.prompt.saturating_add(self.answer)
    }

    /// Returns the context to allocate: more than the request needs, because conversations grow.
    fn context(self) -> u64 {
        self.tokens().max(self.prompt.saturating_add(self.prompt / 4)).next_multiple_of(STEP)
    }
}

impl Daemon {
    /// Returns the context that a loaded model gets for the needs of a request.
    ///
    /// # Errors
    /// 400 if the prompt must not be truncated and exceeds every context that is possible here.
    pub(crate) fn longer_context(&self, model: &Model, needed: Needed) -> Result<u64, Failed> {
        let made_for = model.parsed_facts.context().max(1);
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

    /// Returns the longest context up to `wanted` that fits into memory.
    fn fitting_context(&self, model: &Model, wanted: u64) -> u64 {
        let fits = |context: u64| {
            let cache = ContextRequest { context, slots: self.settings.parallel, kv_type: self.kv_type() };
            let need = MemoryNeed::of(model, cache);
            match self.settings.memory_limit {
                Some(limit) => need.total() <= limit,
                // Weights do not count: they are mapped, so the system can reclaim their pages.
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

/// Returns the number of tokens to reserve for the answer.
fn answer(request: &GenerateRequest) -> u64 {
    request.max_tokens.unwrap_or(ANSWER).min(LONGEST_ANSWER)
}

/// Returns an upper bound of the prompt's tokens: each token has at least one byte.
fn most_tokens(request: &GenerateRequest) -> u64 {
    let json = |value: &serde_json::Value| value.to_string().len() as u64;
    let prompt = match &request.prompt {
        Prompt::Chat(chat) => {
            // Templates differ in the fields that they use. The JSON of all fields is longer than
            // most rendered prompts.
            let messages = serde_json::to_string(&chat.messages).map_or(u64::MAX, |text| text.len() as u64);
            let tools = chat.tools.as_ref().map_or(0, json).saturating_mul(INDENTED);
            messages.saturating_add(tools).saturating_add(chat.documents.as_ref().map_or(0, json))
        }
        Prompt::Text { text } => text.len() as u64,
        Prompt::Tokens { tokens } => tokens.len() as u64,
        Prompt::Insert { prefix, suffix } => (prefix.len() + suffix.len()) as u64,
    };
    let pictures = (request.pictures.len() as u64).saturating_mul(PICTURE_TOKENS);
    prompt.saturating_add(TEMPLATE).saturating_add(request.before.len() as u64).saturating_add(pictures)
}

/// Returns the bytes that are available without swapping, on the machine and in this process's
/// control groups. `None` if the system does not report them.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let of_machine = number_of(&text, "MemAvailable:")?.checked_mul(1024)?;
    Some(control_groups::folders().iter().filter_map(|group| available_in(group)).fold(of_machine, u64::min))
}

/// Returns the available bytes of one group: the rest of its limit plus its file pages, which the
/// system can reclaim.
fn available_in(group: &Path) -> Option<u64> {
    let most = control_groups::number(group, "memory.max")?;
    let used = control_groups::number(group, "memory.current")?;
    let of_files = number_of(&std::fs::read_to_string(group.join("memory.stat")).ok()?, "file ").unwrap_or(0);
    Some(most.saturating_sub(used.saturating_sub(of_files)))
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
    fn a_group_with_a_limit_has_less_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(available_in(folder.path()), None);
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("a file");
        write("memory.current", "7000\n");
        write("memory.stat", "anon 4000\nfile 2500\nfile_mapped 10\n");
        write("memory.max", "max\n");
        assert_eq!(available_in(folder.path()), None);
        write("memory.max", "8000\n");
        assert_eq!(available_in(folder.path()), Some(3500));
    }

    #[test]
    fn a_prompt_has_no_more_tokens_than_bytes() {
        let text = GenerateRequest::new(Prompt::Text { text: "a".repeat(9000) });
        assert!(most_tokens(&text) >= 9000);
        let tokens =
            GenerateRequest { before: vec![1; 50], ..GenerateRequest::new(Prompt::Tokens { tokens: vec![1; 50] }) };
        assert!(most_tokens(&tokens) >= 100);
        let seeing = GenerateRequest { pictures: vec![String::new(); 2], ..text };
        assert!(most_tokens(&seeing) >= 9000 + 2 * 4096);
    }
}
