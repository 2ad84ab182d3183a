//! The tokens of documents with their query, cut to the length that fits.

use anyhow::{Result, ensure};
use prompt::{Pair, PairForm};

use super::Ranking;
use super::form::{Asked, Form};
use crate::text::shorten::shorten;

/// Largest number of tokens of all documents of a request.
const MOST_TOKENS: usize = 1 << 22;

/// The tokens of documents with their query.
#[derive(Debug)]
pub(crate) struct Inputs {
    /// The tokens around two texts, and the query; `None` if a template has already combined each
    /// document with the query.
    pair: Option<(PairForm, Vec<u32>)>,
    documents: Vec<Vec<u32>>,
    /// Number of last tokens that follow a document.
    end: usize,
    most: usize,
    padding: Option<u32>,
    /// Number of tokens that were dropped because documents had more than they may.
    pub(crate) dropped: usize,
}

impl Inputs {
    /// Returns the number of documents.
    pub(crate) fn len(&self) -> usize {
        self.documents.len()
    }

    /// Returns the tokens of a document with its query, and how many did not fit. They are at most
    /// `context` tokens, unless the tokens around the two texts alone are more.
    pub(crate) fn get(&self, index: usize, context: usize) -> (Pair, usize) {
        let (document, all) = (&self.documents[index], self.most.min(context));
        let Some((form, query)) = &self.pair else {
            let mut tokens = document.clone();
            let dropped = shorten(&mut tokens, all, self.end);
            return (self.trimmed(Pair { tokens, second: None }), dropped);
        };
        let left = form.left([query.len(), document.len()], all);
        let dropped = query.len() + document.len() - left[0] - left[1];
        (self.trimmed(form.join(&query[..left[0]], &document[..left[1]])), dropped)
    }

    /// Removes padding at the end.
    fn trimmed(&self, mut pair: Pair) -> Pair {
        while self.padding.is_some() && pair.tokens.len() > 1 && pair.tokens.last().copied() == self.padding {
            pair.tokens.pop();
        }
        pair
    }
}

impl Ranking {
    /// Returns the tokens of documents with their query; [`Inputs::get`] combines a pair when it is
    /// needed. `goes_on` returns whether the client still waits.
    ///
    /// # Errors
    /// Fails if the tokenizer or the template fails, if the template has no place for the
    /// instruction, if there are too many tokens, or if the client is gone.
    pub(crate) fn inputs(&self, asked: &Asked<'_>, documents: &[String], goes_on: impl Fn() -> bool) -> Result<Inputs> {
        let mut inputs = Inputs {
            pair: None,
            documents: Vec::with_capacity(documents.len()),
            end: 0,
            most: self.most,
            padding: self.padding,
            dropped: 0,
        };
        match &self.form {
            Form::Pair { form, parse } => {
                let query = asked.tokens(&[asked.instruction, asked.query].concat(), *parse)?;
                inputs.pair = Some((form.clone(), query));
            }
            Form::Rendered(template) => inputs.end = template.end(asked)?,
        }
        let mut count = 0;
        for document in documents {
            ensure!(goes_on(), "the client has disconnected");
            let (tokens, dropped) = match &self.form {
                Form::Pair { parse, .. } => asked.document(document, *parse)?,
                Form::Rendered(template) => template.document(asked, document)?,
            };
            count += tokens.len();
            ensure!(count <= MOST_TOKENS, "the documents make more than {MOST_TOKENS} tokens; send them in parts");
            inputs.dropped += dropped;
            inputs.documents.push(tokens);
        }
        Ok(inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_document_stays() {
        let inputs = |documents: &[&[u32]], end| Inputs {
            pair: None,
            documents: documents.iter().map(|tokens| tokens.to_vec()).collect(),
            end,
            most: 9,
            padding: None,
            dropped: 0,
        };
        let get = |tokens: &[u32], end, context| {
            let (pair, dropped) = inputs(&[tokens], end).get(0, context);
            (pair.tokens, dropped)
        };
        assert_eq!(get(&[1, 2, 3, 8, 9], 2, 4), (vec![1, 2, 8, 9], 1));
        assert_eq!(get(&[1, 2, 3, 8, 9], 2, 5), (vec![1, 2, 3, 8, 9], 0));
        assert_eq!(get(&[1, 2, 3, 8, 9], 2, 1), (vec![9], 4));
        let filled = Inputs { padding: Some(9), ..inputs(&[&[1, 9, 2, 9, 9]], 0) };
        assert_eq!(filled.get(0, 9).0.tokens, [1, 9, 2]);
    }
}
