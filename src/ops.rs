//! What commands do, apart from how they are asked for and how they answer.
//!
//! Long reports are the API's documents as they are: nothing else is ever done with them.

mod catalogue;
mod collect;
mod create;
mod diff;
mod export;
mod file_digests;
mod foreign;
mod fsck;
mod hosts;
mod http_file;
mod library;
mod load;
mod load_plan;
mod meter;
mod needs;
mod plan;
mod prune;
mod pull;
mod pull_foreign;
mod push;
mod quantize;
mod refetch;
mod remote;
mod repair;
mod repositories;
mod save;
mod upstream;
mod usage;
mod verify;
mod versions;
mod whole;

pub(crate) use create::{CreateSpec, Created, Observer, Source, create};
pub(crate) use diff::diff;
pub(crate) use export::{CannotExport, Export};
pub(crate) use foreign::HubReference;
pub(crate) use fsck::{Selection, fsck};
pub(crate) use hosts::Hosts;
pub(crate) use library::{Library, Model, NotFound};
pub(crate) use load::{BadArchive, load};
pub(crate) use load_plan::load_plan;
pub(crate) use meter::Meter;
pub(crate) use plan::{CannotPlan, PlanSpec, plan};
pub(crate) use prune::{PruneOptions, PrunePlan, UnusedModel, plan_prune};
pub(crate) use pull::{pull, pull_from_hub};
pub(crate) use push::{Push, PushedBlob};
pub(crate) use quantize::{QuantizeSpec, plan_quantization};
pub(crate) use refetch::Refetch;
pub(crate) use repair::repair;
pub(crate) use repositories::Repositories;
pub(crate) use save::{Archive, Since};
pub(crate) use upstream::Upstream;
pub(crate) use usage::usage;
pub(crate) use versions::{NoVersion, Pinned, Version, shown};
