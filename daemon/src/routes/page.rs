//! The web page for browsers. The `OpenAPI` document leaves it out, since it is not an API.

use super::Route;
use crate::page::{file, page};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::for_everybody("/ui", page),
        Route::for_everybody("/ui/", page),
        Route::for_everybody("/ui/{view}", page),
        Route::for_everybody("/ui/files/{version}/{*path}", file),
    ]
}
