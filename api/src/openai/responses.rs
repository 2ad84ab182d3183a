//! `/v1/responses`, without a memory: every request brings the whole conversation, nothing is kept.
//!
//! An answer is a list of items: what the model thought, what it says, the functions it calls. In a stream every item is
//! opened, filled and closed by events of its own; the last event has the whole response.

mod document;
mod event;
mod input;
mod request;
mod stream;
mod tools;

pub use document::Response;
pub use event::ResponseEvent;
pub use request::{Echo, ResponsesRequest};
pub use stream::ResponseStream;

#[cfg(test)]
mod tests;
