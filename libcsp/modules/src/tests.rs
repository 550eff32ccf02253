#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};

use csp_sandbox::{Limits, Module, NoFields, OnStop, Supplied};

use crate::{
    Bounds, Epochs, Handlers, Keep, Kind, LazyEngine, ModuleFolder, Origin, RemoveError, Setup, Store, sha256,
};

const RECENT: Bounds = Bounds { modules_max: 2, bytes_max: 100, keep: Keep::Recent };

fn setup(bounds: Bounds, folder: Option<ModuleFolder>) -> Setup {
    Setup { limits: Limits::default(), trial: None, epochs: Arc::default(), bounds, folder }
}

/// Takes any bytes but `bad` and `panic` as modules, and counts how many it was given.
#[derive(Clone, Debug, Default)]
struct Any {
    compiled: Arc<AtomicUsize>,
    stored: Arc<AtomicUsize>,
    /// Where a compilation waits until the test lets it go on.
    gate: Option<Arc<Mutex<Receiver<()>>>>,
}

impl Kind for Any {
    type Code = Vec<u8>;

    fn compile(&self, _: &LazyEngine, bytes: &[u8], origin: Origin) -> Result<Arc<Vec<u8>>, String> {
        if let Some(gate) = &self.gate {
            gate.lock().unwrap().recv().unwrap();
        }
        self.compiled.fetch_add(1, Ordering::Relaxed);
        self.stored.fetch_add(usize::from(origin == Origin::Stored), Ordering::Relaxed);
        match bytes {
            b"bad" => Err("the module is bad".to_owned()),
            b"panic" => panic!("a rule of the compiler is broken"),
            _ => Ok(Arc::new(bytes.to_vec())),
        }
    }
}

impl Any {
    fn counts(&self) -> (usize, usize) {
        (self.compiled.load(Ordering::Relaxed), self.stored.load(Ordering::Relaxed))
    }

    fn gated() -> (Self, Sender<()>) {
        let (open, gate) = channel();
        (Any { gate: Some(Arc::new(Mutex::new(gate))), ..Any::default() }, open)
    }
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("csp-modules-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }

    fn open(&self) -> Option<ModuleFolder> {
        Some(ModuleFolder::new(self.0.clone(), 100, ("bring", "remove")))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_module_is_compiled_once_for_all_who_bring_it() {
    let kind = Any::default();
    let store = Store::new(kind.clone(), setup(RECENT, None));
    let hash = sha256(b"one");
    let error = store.compile(&hash, b"two").unwrap_err();
    assert_eq!(error, format!("the bytes have the SHA-256 {}, not {hash}", sha256(b"two")));
    assert_eq!(kind.counts(), (0, 0), "nothing is compiled under another's name");
    let first = store.compile(&hash, b"one").unwrap();
    assert!(Arc::ptr_eq(&first, &store.compile(&hash, b"one").unwrap()));
    assert!(Arc::ptr_eq(&first, &store.get(&hash).unwrap()));
    store.offer(&hash, b"one".to_vec());
    assert!(store.is_ready(&hash));
    assert_eq!(kind.counts(), (1, 0));
    assert_eq!(store.compile(&sha256(b"bad"), b"bad").unwrap_err(), "the module is bad");
    assert_eq!(store.compile(&sha256(b"panic"), b"panic").unwrap_err(), "the compiler ended");
}

#[test]
fn the_module_used_longest_ago_makes_room_and_what_runs_stays_with_its_instances() {
    let store = Store::new(Any::default(), setup(RECENT, None));
    let bring = |bytes: &[u8]| store.compile(&sha256(bytes), bytes).unwrap();
    let has = |bytes: &[u8]| store.cached(&sha256(bytes)).is_some();
    let runs = bring(b"first");
    bring(b"second");
    bring(b"first");
    bring(b"third");
    assert_eq!([&b"first"[..], b"second", b"third"].map(has), [true, false, true]);
    // Bytes count, too; one that is longer than all may have is kept alone.
    bring(&[1; 97]);
    assert_eq!([&b"first"[..], b"third", &[1; 97]].map(has), [false, false, true]);
    bring(&[2; 101]);
    assert_eq!([&[1; 97][..], &[2; 101]].map(has), [false, true]);
    assert_eq!(*runs, b"first");
}

#[test]
fn modules_kept_while_they_are_used_are_forgotten_then_and_fill_their_bounds() {
    let bounds = Bounds { keep: Keep::Used, ..RECENT };
    let store = Store::new(Any::default(), setup(bounds, None));
    let bring = |bytes: &[u8]| store.compile(&sha256(bytes), bytes);
    let first = bring(b"first").unwrap();
    let long = "2 modules with 9 bytes run here, and this one has 3: there may be 2 with 100 bytes";
    let second = bring(b"next").unwrap();
    assert_eq!(bring(b"two").unwrap_err(), long);
    drop(second);
    assert!(store.cached(&sha256(b"next")).is_none());
    assert!(bring(&[1; 96]).unwrap_err().ends_with("and this one has 96: there may be 2 with 100 bytes"));
    assert!(bring(&[1; 95]).is_ok() && store.cached(&sha256(b"first")).is_some());
    drop(first);
    assert!(bring(&[1; 100]).is_ok(), "nothing runs");
}

#[test]
fn stored_modules_are_compiled_when_asked_for_and_go_when_nothing_needs_them() {
    let (folder, kind) = (Folder::new("stored"), Any::default());
    let store = Store::new(kind.clone(), setup(RECENT, folder.open()));
    let (hash, bad) = (sha256(b"one"), sha256(b"bad"));
    assert!(store.get(&hash).unwrap_err().ends_with("is not here; bring it with `bring`"));
    assert_eq!(store.put(&bad, b"bad").unwrap_err(), "the module is bad");
    assert_eq!((store.stored(), store.have_come()), (vec![], false), "nothing wrong is kept");
    store.put(&hash, b"one").unwrap();
    store.put(&hash, b"one").unwrap();
    assert_eq!((store.have_come(), store.have_come(), kind.counts()), (true, false, (2, 0)));
    // Another process finds it.
    let again = Store::new(kind.clone(), setup(RECENT, folder.open()));
    assert!(again.cached(&hash).is_none());
    assert_eq!((&**again.get(&hash).unwrap(), kind.counts()), (&b"one"[..], (3, 1)));
    again.set_named([hash.clone()].into_iter());
    assert_eq!(again.remove(&hash, || false), Err(RemoveError::Used));
    again.set_named([].into_iter());
    assert_eq!(again.remove(&hash, || true), Err(RemoveError::Used));
    assert_eq!(again.bytes(&hash), Some(b"one".to_vec()));
    assert_eq!(again.remove(&hash, || false), Ok(()));
    assert_eq!(again.remove(&hash, || false), Err(RemoveError::Unknown));
    assert!(again.get(&hash).is_err() && again.bytes(&hash).is_none());
}

#[test]
fn offers_wait_without_holding_up_the_caller_up_to_a_bound() {
    let (kind, open) = Any::gated();
    let store =
        Store::new(kind.clone(), setup(Bounds { modules_max: 1_000, bytes_max: 10_000, ..RECENT }, None));
    let bytes = |n: usize| n.to_string().into_bytes();
    let hash = |n: usize| sha256(&bytes(n));
    // The thread has at most one in its hands.
    let most = crate::WAITING_MAX + 1;
    (0..=most).for_each(|n| store.offer(&hash(n), bytes(n)));
    store.offer(&hash(0), bytes(0));
    assert!(!store.is_ready(&hash(0)) && store.is_ready(&hash(most)));
    assert!(store.get(&hash(most)).unwrap_err().ends_with("modules wait to be compiled already"));
    assert!(store.get(&hash(0)).unwrap_err().contains("was not sent to this host"), "no outcome yet");
    (0..most).for_each(|_| open.send(()).unwrap());
    let ready = |n: usize| {
        while !store.is_ready(&hash(n)) {
            std::thread::yield_now()
        }
    };
    // One more may have found no place: the thread had not begun.
    (0..most).for_each(ready);
    assert_eq!(**store.get(&hash(crate::WAITING_MAX - 1)).unwrap(), bytes(crate::WAITING_MAX - 1));
    let compiled = kind.counts().0;
    assert!((most - 1..=most).contains(&compiled), "{compiled}");
    // What was refused may be offered again.
    (0..2).for_each(|_| open.send(()).unwrap());
    store.offer(&hash(most), bytes(most));
    ready(most);
    assert_eq!(**store.get(&hash(most)).unwrap(), bytes(most));
    store.offer(&hash(7), b"other".to_vec());
    assert!(store.is_ready(&hash(7)), "it is here already");
    let wrong = hash(5_000);
    store.offer(&wrong, b"other".to_vec());
    ready(5_000);
    assert!(store.get(&wrong).unwrap_err().starts_with("the bytes have the SHA-256 "));
}

/// Emits nothing; loops for ever when it is configured.
const LOOPS: &str = r#"(module (memory (export "memory") 1 1)
    (func (export "csp_abi") (result i32) i32.const 1)
    (func (export "configure") (param i32) (result i32) (loop $on (br $on)) i32.const 0)
    (func (export "on_message") (param i32 i32 i32) (result i32) i32.const 0))"#;

#[test]
fn one_thread_bounds_the_calls_of_all_engines_and_ends_with_its_owners() {
    let epochs: Arc<Epochs> = Arc::default();
    let bytes = wat::parse_str(LOOPS).unwrap();
    // Fuel never ends the call.
    let limits = Limits { fuel_start: u64::MAX, fuel: u64::MAX, epochs_max: 60, ..Limits::default() };
    let bounded = || {
        let store = Store::new(
            Handlers,
            Setup { limits, epochs: epochs.clone(), ..setup(Bounds { bytes_max: 1 << 20, ..RECENT }, None) },
        );
        assert_eq!(store.usage().instances, 0, "there is no engine yet");
        let module: Arc<Module> = store.compile(&sha256(&bytes), &bytes).unwrap();
        let error = Supplied::new(&module, Arc::new(NoFields), OnStop::End, "x").unwrap_err().to_string();
        assert!(error.contains("it ran for too long"), "{error}");
        store
    };
    let stores = [bounded(), bounded()];
    let over = epochs.releases::<Arc<()>>().unwrap();
    let released = Arc::new(());
    let watched: Weak<()> = Arc::downgrade(&released);
    over.send(released).unwrap();
    while watched.strong_count() > 0 {
        std::thread::yield_now();
    }
    drop((stores, epochs));
    // The thread ends, and what it would release is the sender's again.
    while over.send(Arc::default()).is_ok() {
        std::thread::yield_now();
    }
}
