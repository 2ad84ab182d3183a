//! The `OpenAPI` document: it lists exactly the served routes, and responses conform to it.

mod answers;
mod document;
mod routes;
