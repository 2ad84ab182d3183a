//! What commands do, apart from how they are asked for and how they answer.

mod catalogue;
mod collect;
mod create;
mod foreign;
mod hosts;
mod http_file;
mod library;
mod load_plan;
mod meter;
mod pull;
mod pull_foreign;
mod push;
mod remote;
mod repositories;
mod upstream;

pub(crate) use catalogue::CatalogueTensor;
pub(crate) use create::{CreateSpec, Created, Observer, Source, create};
pub(crate) use foreign::HubReference;
pub(crate) use hosts::Hosts;
pub(crate) use library::{Library, Model, NotFound};
pub(crate) use load_plan::load_plan;
pub(crate) use meter::Meter;
pub(crate) use pull::{pull, pull_from_hub};
pub(crate) use push::{Push, PushedBlob};
pub(crate) use repositories::Repositories;
pub(crate) use upstream::Upstream;
