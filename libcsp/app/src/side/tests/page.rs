//! The process page shows a connection's label and address once it is established.

use csp_wire::agent::page::{PAGE_LEN, PageView, Reason, SocketEntry, SocketKind};

use super::*;
use crate::{Page, PageMemory};

struct Memory(Vec<u8>);

impl PageMemory for &mut Memory {
    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

#[test]
fn a_connection_is_labelled_when_it_is_established_and_then_left_alone() {
    let mut w = World::new();
    let remote = "10.76.0.1:9000".parse().unwrap();
    let flow = w.app.connect(w.now, remote, None).unwrap();
    w.run();
    let request = w.proxy.take().remove(0).1;
    let entry = SocketEntry::new(SocketKind::Connection, Reason::Accelerated, 3, remote, remote);
    let mut memory = Memory(vec![0; PAGE_LEN]);
    let mut page = Page::new(&mut memory);
    page.socket(70, Some(&entry));
    page.socket_connected(70, &w.app, flow);
    w.proxy.send(Connected, label(9).to_wire(), request, &open_payload());
    w.run();
    let (local, ..) = w.app.addresses(flow).unwrap();
    let labelled = SocketEntry { label: label(9), local, ..entry };
    page.socket_connected(70, &w.app, flow);
    // Entries that have a label, are no connection, or do not exist are not written.
    page.socket(71, Some(&SocketEntry { label: label(8), ..entry }));
    page.socket(72, Some(&SocketEntry { kind: SocketKind::KernelConnection, ..entry }));
    page.socket(73, Some(&entry));
    page.socket(73, None);
    for index in [71, 72, 73, usize::MAX] {
        page.socket_connected(index, &w.app, flow);
    }
    let shown: Vec<_> = PageView::parse(&memory.0).unwrap().sockets().collect();
    assert_eq!(shown.len(), 3);
    assert_eq!((shown[0].label, shown[0].local), (labelled.label, labelled.local));
    assert_eq!((shown[1].label, shown[1].local), (label(8), remote));
    assert_eq!((shown[2].label, shown[2].local), (FlowLabel::NONE, remote));
}
