//! The page, for browsers. It is no API: the document leaves it out.

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
