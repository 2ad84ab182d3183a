//! `/v1/responses`, stateless: every request carries the whole conversation, and no response is
//! stored.
//!
//! A response is a list of items: reasoning, messages and function calls. In a stream, separate
//! events open, fill and close each item; the last event carries the whole response.

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
