//! Lookup, results and the environment.

use super::*;

fn launch(program: &str) -> Launch {
    Launch { mode: Mode::On, agent: None, program: program.into(), arguments: Vec::new() }
}

/// Creates a file for the test, with access mode `mode`.
fn file(name: &str, content: &[u8], mode: u32) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("csp-run-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

/// Returns an ELF file for this machine with one program header of `kind`.
fn elf(kind: u32) -> Vec<u8> {
    let mut bytes = vec![0; 64 + 56];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[18] = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    bytes[32] = 64;
    bytes[54] = 56;
    bytes[56] = 1;
    bytes[64..68].copy_from_slice(&kind.to_le_bytes());
    bytes
}

#[test]
fn programs_are_found_as_a_shell_finds_them() {
    let verdict = launch("sh").check().unwrap();
    assert!(verdict.path.is_absolute() && verdict.obstacle.is_none());
    assert_eq!(launch("no-such-program-here").check().unwrap_err().exit_code(), 127);
    assert_eq!(launch("/no/such/program").check().unwrap_err().exit_code(), 127);
    let plain = file("plain", b"x", 0o644);
    assert_eq!(launch(plain.to_str().unwrap()).check().unwrap_err().exit_code(), 126);
}

#[test]
fn static_setuid_and_foreign_programs_are_detected() {
    let obstacle = |path: &Path| launch(path.to_str().unwrap()).check().unwrap().obstacle;
    assert_eq!(obstacle(&file("static", &elf(1), 0o755)), Some(Obstacle::Static));
    let dynamic = file("dynamic", &elf(3), 0o755);
    assert_eq!(obstacle(&dynamic), None);
    assert_eq!(obstacle(&file("setuid", &elf(3), 0o4755)), Some(Obstacle::Setuid));
    let mut go = elf(3);
    go[56] = 2;
    go.resize(64 + 2 * 56, 0);
    go[120..128].copy_from_slice(&[1, 0, 0, 0, 6, 0, 0, 0]);
    go[128] = 176;
    go[152] = 64;
    go.resize(176 + 64, 0);
    go[192..206].copy_from_slice(b"\xff Go buildinf:");
    assert_eq!(obstacle(&file("go", &go, 0o755)), Some(Obstacle::Go));
    let mut other = elf(3);
    other[18] = 40;
    assert_eq!(obstacle(&file("foreign", &other, 0o755)), Some(Obstacle::Foreign));
    let script = format!("#! {}  -x\n", file("static2", &elf(1), 0o755).display());
    assert_eq!(obstacle(&file("script", script.as_bytes(), 0o755)), Some(Obstacle::Static));
    let strict = Launch { mode: Mode::Strict, ..launch(file("static3", &elf(1), 0o755).to_str().unwrap()) };
    assert_eq!(strict.prepare().unwrap_err().exit_code(), 78);
    let endless = file("endless", b"", 0o755);
    std::fs::write(&endless, format!("#!{}\n", endless.display())).unwrap();
    assert_eq!(launch(endless.to_str().unwrap()).check().unwrap_err().exit_code(), 126);
}

#[test]
fn the_filter_stands_first_in_ld_preload_and_once() {
    let filter = Path::new("/usr/lib/csp/libcsp_sockfilter.so");
    let value = |before: &str| preload(filter, OsStr::new(before), true).unwrap().into_string().unwrap();
    assert_eq!(value(""), "/usr/lib/csp/libcsp_sockfilter.so");
    assert_eq!(value("/a.so /b.so"), "/usr/lib/csp/libcsp_sockfilter.so:/a.so:/b.so");
    assert_eq!(value("/a.so:/usr/lib/csp/libcsp_sockfilter.so"), "/usr/lib/csp/libcsp_sockfilter.so:/a.so");
    assert!(preload(Path::new("/a b/f.so"), OsStr::new(""), true).is_err());
    let without = |before: &str| preload(filter, OsStr::new(before), false).unwrap().into_string().unwrap();
    assert_eq!(without("/a.so:/usr/lib/csp/libcsp_sockfilter.so"), "/a.so");
    assert_eq!(without("/usr/lib/csp/libcsp_sockfilter.so"), "");
}

/// Returns an ELF file that names a loader, and has code.
fn elf_with(loader: &str, code: &[u8]) -> Vec<u8> {
    let mut bytes = elf(3);
    bytes[56] = 2;
    bytes.resize(64 + 2 * 56, 0);
    let start = bytes.len() as u64;
    bytes.extend(loader.bytes().chain([0]));
    bytes[72..80].copy_from_slice(&start.to_le_bytes());
    bytes[96..104].copy_from_slice(&(loader.len() as u64 + 1).to_le_bytes());
    let start = bytes.len() as u64;
    bytes.extend(code);
    bytes[120..128].copy_from_slice(&[1, 0, 0, 0, 5, 0, 0, 0]);
    bytes[128..136].copy_from_slice(&start.to_le_bytes());
    bytes[152..160].copy_from_slice(&(code.len() as u64).to_le_bytes());
    bytes
}

#[test]
fn programs_of_another_c_library_are_detected_and_not_preloaded() {
    let verdict = |name: &str, loader: &str| {
        let path = file(name, &elf_with(loader, b""), 0o755);
        launch(path.to_str().unwrap()).check().unwrap().obstacle
    };
    assert_eq!(verdict("musl", "/lib/ld-musl-x86_64.so.1"), Some(Obstacle::OtherLibrary));
    assert_eq!(verdict("bionic", "/system/bin/linker64"), Some(Obstacle::OtherLibrary));
    for (name, loader) in [
        ("glibc", "/lib64/ld-linux-x86-64.so.2"),
        ("nix", "/nix/store/abc-glibc-2.40/lib/ld-linux-x86-64.so.2"),
        ("lsb", "/lib64/ld-lsb-x86-64.so.3"),
    ] {
        assert_eq!(verdict(name, loader), None, "{loader}");
    }
}

#[test]
fn code_that_creates_rings_by_its_own_system_calls_is_detected() {
    let rings = |name: &str, code: &[u8]| {
        let path = file(name, &elf_with("/lib64/ld-linux-x86-64.so.2", code), 0o755);
        launch(path.to_str().unwrap()).check().unwrap().rings
    };
    let load = [&[0x90; 100][..], b"\xb8\xa9\x01\x00\x00\x48\x89\xe6"].concat();
    assert!(rings("ring", &[&load[..], b"\x0f\x05\xc3"].concat()));
    assert!(!rings("call", &[&load[..], b"\xe8\x01\x02\x03\x04\xc3"].concat()), "syscall(2) by a call");
    assert!(!rings("far", &[&load[..], &[0x90; 100][..], b"\x0f\x05"].concat()));
    assert!(!rings("end", &load));
}
