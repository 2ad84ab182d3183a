//! The table of routes. Each row is a call with its request, its responses, the scope that an API
//! key needs, and its handler.
//!
//! ```text
//! table ──▶ router           dispatches requests to handlers
//!       ──▶ Permissions      are checked by the guard
//!       ──▶ /openapi.json    documents the API for clients
//! ```
//!
//! To add a call: its documents in `api/`, a handler, a row in the file of its API, and a request
//! in `tests/it/openapi/answers.rs`, which fails for a response that it never got.
//!
//! The registry (`/v2`) is not in the table: `registry::server` has its routes, and OCI's
//! specification describes them. Reading needs the scope `read`, and all other calls need `write`.

mod anthropic;
mod lode;
mod ollama;
mod openai;
mod others;
mod page;
mod service;

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, MethodRouter, any, get, on};
use serde_json::Value;

use crate::daemon::Daemon;
use crate::guard::permissions::Permissions;
use crate::guard::{Permission, Scope};
use crate::openapi::{self, Operation};

/// A row of the table.
pub(crate) struct Route {
    /// The path in the router's syntax.
    path: &'static str,
    /// `None` stands for every method.
    method: Option<Method>,
    permission: Permission,
    handler: MethodRouter<Daemon>,
    /// `None` hides the call from the `OpenAPI` document.
    operation: Option<Operation>,
}

impl Operation {
    /// Makes the row of a call that this handler answers.
    fn served_by<H: Handler<T, Daemon>, T: 'static>(self, handler: H) -> Route {
        let filter = MethodFilter::try_from(self.method.clone());
        let handler = on(filter.expect("invariant: the methods of the table are HTTP's"), handler);
        Route {
            path: self.path,
            method: Some(self.method.clone()),
            permission: self.permission,
            handler,
            operation: Some(self),
        }
    }
}

impl Route {
    /// Makes a row for every method, which the document leaves out.
    fn for_any_method<H: Handler<T, Daemon>, T: 'static>(path: &'static str, scope: Scope, handler: H) -> Self {
        Self { path, method: None, permission: Permission::Scope(scope), handler: any(handler), operation: None }
    }

    /// Makes a row for GET requests of every client, which the document leaves out.
    fn for_everybody<H: Handler<T, Daemon>, T: 'static>(path: &'static str, handler: H) -> Self {
        Self {
            path,
            method: Some(Method::GET),
            permission: Permission::Everybody,
            handler: get(handler),
            operation: None,
        }
    }

    /// Changes the router's path of a row; the document keeps its own.
    fn at(self, path: &'static str) -> Self {
        Self { path, ..self }
    }
}

/// Returns the table.
fn table() -> Vec<Route> {
    let mut all = ollama::routes();
    all.extend(openai::routes());
    all.extend(anthropic::routes());
    all.extend(others::routes());
    all.extend(lode::routes());
    all.extend(service::routes());
    all.extend(page::routes());
    all
}

/// Returns the router of the whole table.
pub(crate) fn router() -> Router<Daemon> {
    table().into_iter().fold(Router::new(), |router, route| router.route(route.path, route.handler))
}

/// Returns the permission that each call of the table needs.
pub(crate) fn permissions() -> Permissions {
    Permissions::of(table().into_iter().map(|route| (route.path, route.method, route.permission)))
}

/// Returns the `OpenAPI` document of the table.
pub(crate) fn document() -> Value {
    let table = table();
    openapi::document(table.iter().filter_map(|route| route.operation.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_need_what_they_do() {
        let permissions = permissions();
        for (method, path, need) in [
            (Method::GET, "/", Some(Permission::Everybody)),
            (Method::HEAD, "/", Some(Permission::Everybody)),
            (Method::GET, "/openapi.json", Some(Permission::Everybody)),
            (Method::GET, "/ui/files/{version}/{*path}", Some(Permission::Everybody)),
            (Method::GET, "/api/lode/running", Some(Permission::Scope(Scope::Read))),
            (Method::OPTIONS, "/api/delete", None),
            (Method::GET, "/api/tags", Some(Permission::Scope(Scope::Read))),
            (Method::POST, "/api/show", Some(Permission::Scope(Scope::Read))),
            (Method::GET, "/metrics", Some(Permission::Scope(Scope::Read))),
            (Method::POST, "/api/chat", Some(Permission::Scope(Scope::Run))),
            (Method::POST, "/api/tokenize", Some(Permission::Scope(Scope::Run))),
            (Method::POST, "/v1/messages/count_tokens", Some(Permission::Scope(Scope::Run))),
            (Method::GET, "/v1/models", Some(Permission::Scope(Scope::Read))),
            (Method::HEAD, "/v1/models/{*model}", Some(Permission::Scope(Scope::Read))),
            (Method::POST, "/api/blobs/{digest}", Some(Permission::Scope(Scope::Write))),
            (Method::HEAD, "/api/blobs/{digest}", Some(Permission::Scope(Scope::Read))),
            (Method::DELETE, "/api/delete", Some(Permission::Scope(Scope::Write))),
            (Method::POST, "/api/lode/prune", Some(Permission::Scope(Scope::Admin))),
            (Method::DELETE, "/api/me", Some(Permission::Scope(Scope::Read))),
            (Method::POST, "/api/of/tomorrow", None),
            (Method::GET, "/api/chat", None),
        ] {
            assert_eq!(permissions.find(path, &method), need, "{method} {path}");
        }
    }

    #[test]
    fn whoever_changes_something_needs_the_right_to() {
        for route in table() {
            let Some(method) = &route.method else { continue };
            let looks = matches!(*method, Method::GET | Method::HEAD);
            assert!(looks || route.permission != Permission::Everybody, "{method} {} is for everybody", route.path);
            let changes = *method == Method::DELETE || *method == Method::PUT;
            let may = matches!(route.permission, Permission::Scope(scope) if scope.changes());
            assert!(!changes || may, "{method} {}", route.path);
        }
    }
}
