//! What commands do, apart from how they are asked for and how they answer.

mod catalogue;
mod collect;
mod create;
mod foreign;
mod http_file;
mod library;
mod load_plan;
mod pull_foreign;
mod remote;

pub(crate) use catalogue::CatalogueTensor;
pub(crate) use create::{CreateSpec, Created, Observer, Source, create};
pub(crate) use library::{Library, Model, NotFound};
pub(crate) use load_plan::load_plan;
