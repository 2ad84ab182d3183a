//! The prompts of the user: line editing and history.

use std::path::PathBuf;

use anyhow::Result;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::{FileHistory, History};
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Behavior, Config, Editor, Helper};

use super::command::is_open;

/// Reads prompts.
pub(super) struct Prompts {
    editor: Editor<Lines, FileHistory>,
    /// File with the history of prompts.
    file: PathBuf,
    /// Whether new prompts are saved to the file.
    is_kept: bool,
}

impl Prompts {
    /// Opens the editor with the history of earlier sessions.
    pub(super) fn open(file: PathBuf) -> Result<Self> {
        // The prompt goes to the terminal even if standard output is a file.
        let config = Config::builder().behavior(Behavior::PreferTerm).build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(Lines));
        // The file does not exist in the first session.
        let _ = editor.load_history(&file);
        Ok(Self { editor, file, is_kept: true })
    }

    /// Sets whether new prompts are saved for later sessions.
    pub(super) fn set_kept(&mut self, is_kept: bool) {
        self.is_kept = is_kept;
    }

    /// Reads a line, or several lines if the first begins with `"""`. Returns `None` at the end of
    /// the input and an empty text after an interrupt.
    pub(super) fn read(&mut self) -> Result<Option<String>> {
        let text = match self.editor.readline(">>> ") {
            Ok(text) => text,
            Err(ReadlineError::Interrupted) => {
                eprintln!("(/bye or Ctrl+D leaves)");
                return Ok(Some(String::new()));
            }
            Err(ReadlineError::Eof) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // `append` writes all new entries, so prompts that must not be saved are not added.
        let is_new = self.is_kept && !text.trim().is_empty();
        if is_new && self.editor.add_history_entry(text.trim()).unwrap_or(false) {
            self.keep();
        }
        Ok(Some(text))
    }

    /// Writes the last prompt to the file at once, because a session may end in many ways.
    fn keep(&mut self) {
        let folder = self.file.parent().map_or(Ok(()), std::fs::create_dir_all);
        let kept = folder.map_err(ReadlineError::from).and_then(|()| self.editor.history_mut().append(&self.file));
        if let Err(error) = kept {
            eprintln!("what is typed is not kept in `{}`: {error}", self.file.display());
            self.is_kept = false;
        }
    }
}

/// Makes the editor continue a text with an open `"""` on the next line.
struct Lines;

impl Validator for Lines {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_open(context.input()) { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Completer for Lines {
    type Candidate = String;
}

impl Hinter for Lines {
    type Hint = String;
}

impl Highlighter for Lines {}

impl Helper for Lines {}
