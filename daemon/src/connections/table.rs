//! The table of connections. If it is full, a new connection replaces the one that has been idle
//! for the longest.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::activity::Activity;
use super::limits::ConnectionLimits;

/// All connections.
#[derive(Debug)]
pub(super) struct Table {
    limits: ConnectionLimits,
    rows: Mutex<ConnectionRows>,
}

#[derive(Debug, Default)]
struct ConnectionRows {
    next: u64,
    connections: HashMap<u64, Row>,
}

#[derive(Debug)]
struct Row {
    peer: IpAddr,
    activity: Activity,
    displaced: Arc<Notify>,
}

/// A connection's place in the table, released when this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionEntry {
    table: Arc<Table>,
    number: u64,
    activity: Activity,
    displaced: Arc<Notify>,
}

impl Table {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        Self { limits, rows: Mutex::default() }
    }

    fn rows(&self) -> MutexGuard<'_, ConnectionRows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a place for a connection from this peer; `None` if all connections are busy.
    pub(super) fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionEntry> {
        let peer = peer.to_canonical();
        let mut rows = self.rows();
        let from_there = |row: &Row| row.peer == peer;
        if !peer.is_loopback() && rows.connections.values().filter(|row| from_there(row)).count() >= self.limits.of_peer
        {
            rows.displace(from_there)?;
        } else if rows.connections.len() >= self.limits.most {
            rows.displace(|_| true)?;
        }
        rows.next += 1;
        let (number, activity, displaced) = (rows.next, Activity::new(), Arc::new(Notify::new()));
        let row = Row { peer, activity: activity.clone(), displaced: displaced.clone() };
        rows.connections.insert(number, row);
        Some(ConnectionEntry { table: self.clone(), number, activity, displaced })
    }
}

impl ConnectionRows {
    /// Removes the connection that has been idle for the longest among the selected ones. Returns
    /// `None` if all are busy.
    fn displace(&mut self, among: impl Fn(&Row) -> bool) -> Option<()> {
        let idle = self.connections.iter().filter(|(_, row)| among(row));
        let idle = idle.filter_map(|(number, row)| Some((row.activity.idle_since()?, *number)));
        let (_, number) = idle.min()?;
        let row = self.connections.remove(&number)?;
        row.displaced.notify_one();
        Some(())
    }
}

impl ConnectionEntry {
    pub(super) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Returns when another connection has taken the place.
    pub(super) async fn displaced(&self) {
        self.displaced.notified().await;
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        self.table.rows().connections.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::limits::Times;

    fn limits(most: usize, of_peer: usize) -> ConnectionLimits {
        ConnectionLimits { most, of_peer, times: Times::default() }
    }

    #[tokio::test]
    async fn the_longest_idle_gives_way_and_the_busy_stay() {
        let table = Arc::new(Table::new(limits(3, 2)));
        let (here, far): (IpAddr, IpAddr) = ([127, 0, 0, 1].into(), [10, 0, 0, 1].into());
        let first = table.admit(here).expect("a place");
        let busy = first.activity().begin();
        let second = table.admit(here).expect("a place");
        let _third = table.admit(here).expect("a place");
        let fourth = table.admit(far).expect("the second's");
        second.displaced().await;
        let fifth = fourth.activity().begin();
        assert_eq!(table.rows().connections.len(), 3);
        drop(second);
        assert_eq!(table.rows().connections.len(), 3, "its place was another's already");
        drop(busy);
        let _sixth = table.admit(far).expect("the first's, or the third's");
        assert!(table.admit(far).is_some(), "its own idle one gives way");
        drop(fifth);
    }

    #[test]
    fn where_all_are_busy_nobody_is_admitted() {
        let table = Arc::new(Table::new(limits(1, 1)));
        let only = table.admit([127, 0, 0, 1].into()).expect("a place");
        let busy = only.activity().begin();
        assert!(table.admit([127, 0, 0, 1].into()).is_none());
        drop(busy);
        assert!(table.admit([127, 0, 0, 1].into()).is_some());
    }
}
