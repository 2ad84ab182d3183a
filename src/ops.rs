//! What commands do, apart from how they are asked for and how they answer.

mod catalogue;
mod collect;
mod create;
mod hosts;
mod library;
mod load_plan;
mod meter;
mod pull;
mod push;
mod repositories;
mod upstream;

pub(crate) use catalogue::CatalogueTensor;
pub(crate) use create::{CreateSpec, Created, Observer, Source, create};
pub(crate) use hosts::Hosts;
pub(crate) use library::{Library, Model, NotFound};
pub(crate) use load_plan::load_plan;
pub(crate) use meter::Meter;
pub(crate) use pull::pull;
pub(crate) use push::{Push, PushedBlob};
pub(crate) use repositories::Repositories;
pub(crate) use upstream::Upstream;
