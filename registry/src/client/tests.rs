//! The client against small servers on this machine, some of which lie, refuse, or go silent.

mod authorization;
mod fake;
mod sending;
