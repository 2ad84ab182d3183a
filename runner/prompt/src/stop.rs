//! Stop strings, which end a generation's text.

/// Filter that holds back text as long as it can be the beginning of a stop string.
#[derive(Clone, Debug)]
pub struct StopFilter {
    stops: Vec<String>,
    held: String,
}

/// Result of adding text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passed {
    /// Text that is certainly not part of a stop string; can be empty.
    Text(String),
    /// A stop string was found; the text ends.
    Stopped {
        /// Text before the stop string.
        text: String,
        /// The stop string.
        stop: String,
    },
}

impl StopFilter {
    /// Creates a filter for these strings; empty ones are ignored.
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(), held: String::new() }
    }

    /// Adds text.
    pub fn push(&mut self, text: &str) -> Passed {
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        if let Some((at, stop)) = found.min_by_key(|(at, _)| *at) {
            self.held.truncate(at);
            return Passed::Stopped { text: std::mem::take(&mut self.held), stop: stop.clone() };
        }
        let safe = self.held.len() - self.longest_beginning();
        let rest = self.held.split_off(safe);
        Passed::Text(std::mem::replace(&mut self.held, rest))
    }

    /// Returns the text that is still held back, at the end.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Returns the length of the longest suffix of the held text that begins a stop string.
    fn longest_beginning(&self) -> usize {
        let beginning = |stop: &String| {
            let longest = stop.len().saturating_sub(1).min(self.held.len());
            (1..=longest).rev().find(|n| {
                let at = self.held.len() - n;
                self.held.is_char_boundary(at) && stop.as_bytes().starts_with(&self.held.as_bytes()[at..])
            })
        };
        self.stops.iter().filter_map(beginning).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(stops: &[&str], pieces: &[&str], expect: &[&str], end: Option<&str>) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut filter = StopFilter::new(&stops);
        let mut told = Vec::new();
        let mut stopped = false;
        for piece in pieces {
            match filter.push(piece) {
                Passed::Text(text) => told.push(text),
                Passed::Stopped { text, .. } => {
                    told.push(text);
                    stopped = true;
                    break;
                }
            }
        }
        assert_eq!(told, expect, "{stops:?} {pieces:?}");
        match end {
            Some(end) => assert_eq!((stopped, filter.finish().as_str()), (false, end)),
            None => assert!(stopped),
        }
    }

    #[test]
    fn holds_back_and_stops() {
        check(&["END"], &["abE", "N", "D", "x"], &["ab", "", ""], None);
        check(&["END"], &["abE", "Nx"], &["ab", "ENx"], Some(""));
        check(&["END"], &["aE"], &["a"], Some("E"));
        check(&["ab", "b"], &["xab"], &["x"], None);
        check(&["\n\n"], &["a\n", "b\n", "\nc"], &["a", "\nb", ""], None);
        check(&["é!"], &["aé", "?"], &["a", "é?"], Some(""));
        check(&["aab"], &["aa", "ab"], &["", "a"], None);
        check(&["", "x"], &["abc"], &["abc"], Some(""));
        check(&[], &["abc"], &["abc"], Some(""));
    }
}
