//! Lists of texts, computed in pieces: between two of them the model is given to requests that wait for it, so that a long list holds
//! nothing up for longer than a piece takes.

use protocol::{EmbedInput, EmbedReply, EmbedRequest, RerankReply, RerankRequest};

use crate::call::{Call, Ready};
use crate::daemon::Daemon;
use crate::error::Failed;

/// Bytes of the texts of a piece, unless its first text is longer: some thousand tokens.
const PIECE: usize = 8192;
/// Bytes that count for a token of a text that is given in tokens.
const TOKEN: usize = 4;

impl Call {
    /// The vectors of texts, and the lease that the last of them had.
    ///
    /// # Errors
    /// What the runner says of a text; the model cannot be loaded any more.
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

    /// The scores of documents, and the lease that the last of them had.
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

/// Runs of items, each as long as fits into a piece, and one item at least.
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
