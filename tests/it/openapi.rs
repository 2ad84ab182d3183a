//! The `OpenAPI` document: it has what is served and nothing else, and answers are what it says.

mod answers;
mod document;
mod routes;
