//! What the daemon serves: one table. Each row is a call with what it takes and gives, what a key must allow for it, and who
//! answers.
//!
//! ```text
//! table ──▶ router           which handler answers
//!       ──▶ Permissions      what the guard asks for
//!       ──▶ /openapi.json    what clients are told
//! ```
//!
//! The registry (`/v2`) is a row of another kind: `registry::server` has its routes, OCI's specification describes them, and
//! reading there needs `read`, all else `write`.

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
    /// As the router has it.
    path: &'static str,
    /// None is every method.
    method: Option<Method>,
    permission: Permission,
    handler: MethodRouter<Daemon>,
    /// None is not to be told.
    operation: Option<Operation>,
}

impl Operation {
    /// The row of a call that this handler answers.
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
    /// A row that answers every method and that the document leaves out.
    fn for_any_method<H: Handler<T, Daemon>, T: 'static>(path: &'static str, scope: Scope, handler: H) -> Self {
        Self { path, method: None, permission: Permission::Scope(scope), handler: any(handler), operation: None }
    }

    /// A row that answers everybody who looks, and that the document leaves out.
    fn for_everybody<H: Handler<T, Daemon>, T: 'static>(path: &'static str, handler: H) -> Self {
        Self {
            path,
            method: Some(Method::GET),
            permission: Permission::Everybody,
            handler: get(handler),
            operation: None,
        }
    }

    /// At another path of the router than the document tells.
    fn at(self, path: &'static str) -> Self {
        Self { path, ..self }
    }
}

/// The table.
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

/// The router of the whole table.
pub(crate) fn router() -> Router<Daemon> {
    table().into_iter().fold(Router::new(), |router, route| router.route(route.path, route.handler))
}

/// Who may make each call of the table.
pub(crate) fn permissions() -> Permissions {
    Permissions::of(table().into_iter().map(|route| (route.path, route.method, route.permission)))
}

/// What clients are told of the table.
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
