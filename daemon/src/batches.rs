//! Lists of texts, computed in batches. Between two batches the model is released to waiting
//! requests, so that a long list delays them at most by one batch.

use protocol::{EmbedInput, EmbedReply, EmbedRequest, RerankReply, RerankRequest};

use crate::call::{Call, Ready};
use crate::daemon::Daemon;
use crate::error::Failed;

/// Maximal number of text bytes in a batch, some thousand tokens. A longer text has its own batch.
const PIECE: usize = 8192;
/// Number of bytes that a token counts in a text that is given as tokens.
const TOKEN: usize = 4;

impl Call {
    /// Computes the embeddings of texts. Also returns the lease of the last batch.
    ///
    /// # Errors
    /// The runner's error about a text, or the model cannot be loaded again.
    pub(crate) async fn embed(
        &self,
        daemon: &Daemon,
        mut ready: Ready,
        asked: &EmbedRequest,
    ) -> Result<(EmbedReply, Ready), Failed> {
        let mut all = EmbedReply { embeddings: Vec::new(), prompt_tokens: Vec::new(), truncated_tokens: 0 };
        for piece in pieces(&asked.inputs, length) {
            if !all.embeddings.is_empty() {
                ready = self.give_way(daemon, ready).await?;
            }
            let first = asked.first + all.embeddings.len() as u64;
            let reply = ready.runner().embed(&EmbedRequest { inputs: piece.to_vec(), first, ..asked.clone() }).await?;
            all.embeddings.extend(reply.embeddings);
            all.prompt_tokens.extend(reply.prompt_tokens);
            all.truncated_tokens += reply.truncated_tokens;
        }
        Ok((all, ready))
    }

    /// Computes the scores of documents. Also returns the lease of the last batch.
    ///
    /// # Errors
    /// As [`embed`](Self::embed).
    pub(crate) async fn rerank(
        &self,
        daemon: &Daemon,
        mut ready: Ready,
        asked: &RerankRequest,
    ) -> Result<(RerankReply, Ready), Failed> {
        let mut all = RerankReply::default();
        for piece in pieces(&asked.documents, String::len) {
            if !all.scores.is_empty() {
                ready = self.give_way(daemon, ready).await?;
            }
            let first = asked.first + all.scores.len() as u64;
            let request = RerankRequest { documents: piece.to_vec(), first, ..asked.clone() };
            let reply = ready.runner().rerank(&request).await?;
            all.scores.extend(reply.scores);
            all.prompt_tokens.extend(reply.prompt_tokens);
            all.truncated_tokens += reply.truncated_tokens;
        }
        Ok((all, ready))
    }
}

fn length(input: &EmbedInput) -> usize {
    match input {
        EmbedInput::Text { text } => text.len(),
        EmbedInput::Tokens { tokens } => tokens.len().saturating_mul(TOKEN),
    }
}

/// Divides items into consecutive batches; each holds as many items as fit, and at least one.
fn pieces<T>(items: &[T], length: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let (mut pieces, mut begin, mut bytes) = (Vec::new(), 0, 0_usize);
    for (at, item) in items.iter().enumerate() {
        let own = length(item);
        if at > begin && bytes.saturating_add(own) > PIECE {
            pieces.push(&items[begin..at]);
            (begin, bytes) = (at, 0);
        }
        bytes = bytes.saturating_add(own);
    }
    if begin < items.len() {
        pieces.push(&items[begin..]);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_all_items_in_their_order() {
        let lengths = |items: &[usize]| -> Vec<Vec<usize>> {
            pieces(items, |item| *item).into_iter().map(<[usize]>::to_vec).collect()
        };
        assert_eq!(lengths(&[]), Vec::<Vec<usize>>::new());
        assert_eq!(lengths(&[100_000, 1, 8191, 1]), [vec![100_000], vec![1, 8191], vec![1]]);
        assert_eq!(lengths(&[usize::MAX, usize::MAX]).len(), 2);
        let many = vec![2000; 32];
        assert_eq!(lengths(&many).iter().map(Vec::len).collect::<Vec<_>>(), [4; 8]);
    }
}
