//! Tests of the client with small local servers, some of which send wrong data, refuse or stall.

mod authorization;
mod fake;
mod providing;
mod sending;
